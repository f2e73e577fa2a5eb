package cli

import (
	"context"
	"io"
	"os"
)

// openFile opens a file for reading until the command is interrupted. To open a pipe waits for its other end.
func openFile(ctx context.Context, name string) (io.ReadCloser, error) {
	type answer struct {
		f   *os.File
		err error
	}
	done := make(chan answer, 1)
	go func() { // An interrupt leaves it behind: the program ends then.
		f, err := os.Open(name)
		done <- answer{f, err}
	}()
	select {
	case a := <-done:
		if a.err != nil {
			return nil, a.err
		}
		return struct {
			io.Reader
			io.Closer
		}{&input{ctx, a.f}, a.f}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
