package server

import (
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"
)

// A flood does not put thousands of connections before that of another user: the kernel keeps as many as backlog, and one more of
// those that are closed at once.
func TestBacklogIsShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for n := 0; ; n++ {
		c, err := net.Dial("unix", path)
		if errors.Is(err, syscall.EAGAIN) && n == backlog+1 {
			return
		}
		if err != nil || n > backlog {
			t.Fatalf("connection %d: %v", n, err)
		}
		defer c.Close()
	}
}
