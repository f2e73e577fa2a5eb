package client

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// Root has no permission errors, so they are tested with the error itself.
func TestUnreachableByErrno(t *testing.T) {
	for errno, want := range map[syscall.Errno]struct {
		kind api.Kind
		says string
	}{
		syscall.ENOENT:       {api.KindUnavailable, "no such socket"},
		syscall.ECONNREFUSED: {api.KindUnavailable, "no process listens"},
		syscall.EACCES:       {api.KindDenied, "permission denied"},
		syscall.EPERM:        {api.KindDenied, "permission denied"},
		syscall.EAGAIN:       {api.KindUnavailable, "resource temporarily unavailable"},
	} {
		t.Run(errno.Error(), func(t *testing.T) {
			c := Client{Socket: "/run/x"}
			err := c.unreachable(t.Context(), &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", errno)})
			var e *api.Error
			if !errors.As(err, &e) || e.Kind != want.kind || !strings.Contains(e.Message, want.says) ||
				!strings.Contains(e.Message, "/run/x") ||
				e.Hint == "" {
				t.Errorf("reported as %#v", err)
			}
		})
	}
}
