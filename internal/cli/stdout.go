package cli

import (
	"io"
	"sync/atomic"
)

// stdout is standard output. It keeps the first error of a write: a full disk behind '> file' must not look like success.
type stdout struct {
	w   io.Writer
	err atomic.Pointer[error]
}

// Write writes, and keeps an error.
func (s *stdout) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		s.err.CompareAndSwap(nil, &err)
	}
	return n, err
}

// failed is the first error.
func (s *stdout) failed() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

// behind is what an output writes to.
func behind(w any) any {
	if s, ok := w.(*stdout); ok {
		return s.w
	}
	return w
}
