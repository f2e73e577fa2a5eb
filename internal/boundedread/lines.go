package boundedread

import (
	"bufio"
	"errors"
	"io"
)

// Lines reads a stream line by line. A line that is longer than its limit is left out and counted: what follows it is still read,
// and no line makes the reader keep more than the limit.
type Lines struct {
	in   *bufio.Reader
	long int // lines that were left out
	err  error
}

// NewLines reads lines of at most limit bytes.
func NewLines(r io.Reader, limit int) *Lines {
	return &Lines{in: bufio.NewReaderSize(r, limit+1)}
}

// Next returns the next line without its end, valid until the next call; false at the end of the stream and after an error.
func (l *Lines) Next() ([]byte, bool) {
	for l.err == nil {
		line, err := l.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			l.long++
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = l.in.ReadSlice('\n')
			}
			l.err = err
			continue
		}
		l.err = err
		if err == nil {
			line = line[:len(line)-1]
			if n := len(line); n > 0 && line[n-1] == '\r' {
				line = line[:n-1]
			}
			return line, true
		}
		if len(line) > 0 {
			return line, true
		}
	}
	return nil, false
}

// Long is the number of lines that were left out.
func (l *Lines) Long() int { return l.long }

// Err is the error that ended the reading; nil at the end of the stream.
func (l *Lines) Err() error {
	if errors.Is(l.err, io.EOF) {
		return nil
	}
	return l.err
}

// Scanner reads a stream line by line, and ends with bufio.ErrTooLong at a longer line.
func Scanner(r io.Reader, limit int) *bufio.Scanner {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, min(limit, 4<<10)), limit)
	return in
}
