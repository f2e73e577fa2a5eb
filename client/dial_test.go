package client

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// crowdedSocket is a socket whose backlog is full of connections that are not accepted.
func crowdedSocket(t *testing.T) (string, net.Listener) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	for {
		c, err := net.Dial("unix", path)
		if errors.Is(err, syscall.EAGAIN) {
			return path, l
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
}

// Who meets a full backlog waits for a place, and has it as soon as there is one.
func TestDialWaitsForItsPlace(t *testing.T) {
	path, l := crowdedSocket(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		c, err := Dial(ctx, path)
		if err == nil {
			_, err = c.Write([]byte("hi"))
		}
		got <- err
	}()
	for said := ""; said != "hi"; { // Those of the crowd came first, and say nothing.
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		b := make([]byte, 2)
		n, _ := c.Read(b)
		said = string(b[:n])
		select {
		case err := <-got:
			if err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
}

// A caller that gives up waiting gets the reason.
func TestDialIsGivenUp(t *testing.T) {
	path, _ := crowdedSocket(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if c, err := Dial(ctx, path); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("got %v, %v", c, err)
	}
}
