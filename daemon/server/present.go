package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the name of the socket that is served, and serves it again if another program has removed it. It is used by one caller at
// a time.
type Socket struct {
	Path  string
	Serve func(net.Listener) // in a goroutine of its own, until the listener is closed

	bound fs.FileInfo  // nil: it is not known yet
	again net.Listener // the last one that was opened by Revalidate
}

// Revalidate compares the name with the socket, and opens it again.
func (s *Socket) Revalidate() (lost []string, err error) {
	now, err := os.Lstat(s.Path)
	switch {
	case s.bound != nil && err == nil && os.SameFile(now, s.bound):
		return nil, nil
	case s.bound == nil && err == nil && isListening(s.Path):
		s.bound = now // The first call is made before the daemon says that it is ready.
		return nil, nil
	}
	lost = []string{"the socket " + s.Path}
	l, err := Listen(s.Path)
	if err != nil {
		return lost, err
	}
	if s.bound, err = os.Lstat(s.Path); err != nil {
		l.Close()
		return lost, err
	}
	if s.again != nil {
		s.again.Close() // No client reaches it any more. The first one stays: its end is the end of the daemon.
	}
	s.again = l
	s.Serve(l)
	return lost, nil
}

// isListening reports whether a process listens on the socket of a name. The service manager passes the socket that it opened, although
// its name may be that of another one by now, on which a process listened that has ended.
func isListening(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
}

// Answers makes a request at a socket as any program does, and returns why there was no answer.
func Answers(ctx context.Context, path string) error {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://gpushare/v1", nil)
	if err != nil {
		return err
	}
	res, err := t.RoundTrip(q)
	if err != nil {
		return fmt.Errorf("the socket %s does not answer: %w", path, err)
	}
	return res.Body.Close()
}
