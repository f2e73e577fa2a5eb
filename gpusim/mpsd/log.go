package mpsd

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// logger writes log lines in the format of the real programs.
type logger struct {
	branch   branch
	mu       sync.Mutex // guards out and silenced
	out      io.Writer
	silenced bool
}

func (j *logger) line(source string, pid int, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.silenced {
		return
	}
	// A missing reader of the log is ignored.
	_, _ = fmt.Fprintf(
		j.out, "[%s %s%s %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), source, j.branch.level(), pid,
		fmt.Sprintf(format, args...),
	)
}

// A record in the log FIFO: twelve words and the message, as in branches up to 595.
const (
	recordWords  = 12
	recordServer = 1
)

// record returns the FIFO record of a server's message.
func record(b branch, pid int, message string) []byte {
	t := time.Now()
	words := [recordWords]uint32{
		b.recordMagic(), uint32(pid), uint32(t.Year()), uint32(t.Month()), uint32(t.Day()), uint32(t.Weekday()),
		uint32(t.Hour()), uint32(t.Minute()), uint32(t.Second()), uint32(t.Nanosecond() / 1e6), uint32(len(message)), recordServer,
	}
	var out []byte
	for _, w := range words {
		out = binary.LittleEndian.AppendUint32(out, w)
	}
	return append(out, message...)
}

// readFIFO prints the log records of servers until the FIFO is closed. All users can write to the FIFO. Bytes that are
// not a record silence the log permanently, as in the real daemon.
func (j *logger) readFIFO(fifo io.Reader) {
	head := make([]byte, 4*recordWords)
	for {
		if _, err := io.ReadFull(fifo, head); err != nil {
			return
		}
		word := func(i int) uint32 { return binary.LittleEndian.Uint32(head[4*i:]) }
		if word(0) != j.branch.recordMagic() || word(10) > maxText {
			j.mu.Lock()
			j.silenced = true
			j.mu.Unlock()
			// The FIFO must still be read, otherwise servers block on it.
			_, _ = io.Copy(io.Discard, fifo)
			return
		}
		message := make([]byte, word(10))
		if _, err := io.ReadFull(fifo, message); err != nil {
			return
		}
		j.line("Server", int(word(1)), "%s", message)
	}
}

// serverLog is the write end of the FIFO in the server.
type serverLog struct {
	fifo   *os.File // nil when it could not be opened: no log
	branch branch
}

func (l serverLog) line(format string, args ...any) {
	if l.fifo != nil {
		_, _ = l.fifo.Write(record(l.branch, os.Getpid(), fmt.Sprintf(format, args...)))
	}
}
