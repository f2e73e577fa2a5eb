package ledger

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"runtime"
)

// linesAtOnce is how many lines are read until other goroutines run. The daemon has one thread for them: without it a long file
// delays each step of a request by the 10 ms after which the runtime interrupts a goroutine. These lines take about 0.2 ms.
const linesAtOnce = 32

// eachLine calls each with the lines of the first size bytes of a file, all for a negative size, until it returns false. whole is
// false for a line without its end. Of a line that is longer than any that is written, raw is a part. each must not keep the bytes.
func eachLine(path string, size int64, each func(raw []byte, whole bool) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // the file was only read
	if size < 0 {
		size = math.MaxInt64
	}
	lines, partial := bufio.NewReaderSize(io.LimitReader(f, size), maxLine), false
	for n := 1; ; n++ {
		if n%linesAtOnce == 0 {
			runtime.Gosched()
		}
		raw, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			partial = true
			continue
		case errors.Is(err, io.EOF):
			if partial { // The last part of a long line may look like a line.
				raw = raw[:0]
			}
			if len(raw) > 0 || partial {
				each(raw, false)
			}
			return nil
		case err != nil:
			return err
		}
		if partial { // The last part of a long line may look like a line.
			raw = raw[len(raw)-1:]
		}
		if !each(bytes.TrimSuffix(raw, []byte("\n")), true) {
			return nil
		}
		partial = false
	}
}
