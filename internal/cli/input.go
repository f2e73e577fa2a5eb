package cli

import (
	"context"
	"io"
)

// input is standard input until the command is interrupted. A read of a terminal or a pipe ends with what it reads and not by a signal
// that the program handles.
type input struct {
	ctx context.Context
	r   io.Reader
}

// Read reads in a goroutine, which an interrupt leaves behind: the program ends then.
func (in *input) Read(p []byte) (int, error) {
	type answer struct {
		n   int
		err error
	}
	b, done := make([]byte, len(p)), make(chan answer, 1)
	go func() { // ends with the input, or with the program
		n, err := in.r.Read(b)
		done <- answer{n, err}
	}()
	select {
	case a := <-done:
		copy(p, b[:a.n])
		return a.n, a.err
	case <-in.ctx.Done():
		return 0, in.ctx.Err()
	}
}
