package passed

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/hostile"
)

// linger is how long the kernel waits in a close, and soon how long a call may last that does not wait for it.
const (
	linger = 20 * time.Second
	soon   = linger / 4
)

// connected returns both ends of a connection. Without refuse it is as kernels before 6.16 have it.
func connected(t *testing.T, refuse bool) (hostile *net.UnixConn, accepted *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	refuses := true
	if err := raw.Control(func(fd uintptr) { refuses = !refuse || Refuse(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	if !refuses {
		t.Skip("needs Linux 6.16: the kernel refuses no descriptors")
	}
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if accepted, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	return c, accepted
}

// victim is a connection on which a lingering socket waits.
func victim(t *testing.T, b string, flags int) (*net.UnixConn, *Conn) {
	t.Helper()
	h, accepted := connected(t, false)
	if err := hostile.Pass(t, h, []byte(b), hostile.Lingering(t, linger), flags); err != nil {
		t.Fatal(err)
	}
	c, err := New(accepted)
	if err != nil {
		t.Fatal(err)
	}
	return h, c
}

// within fails if a call waits.
func within(t *testing.T, limit time.Duration, what string, call func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() { call(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(limit):
		t.Fatalf("%s waits for what was passed", what)
	}
}

// What this package is for: a close waits.
func TestTheKernelWaits(t *testing.T) {
	t.Parallel()
	h, accepted := connected(t, false)
	if err := hostile.Pass(t, h, []byte("x"), hostile.Lingering(t, time.Second), 0); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := accepted.Close(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < time.Second/2 {
		t.Errorf("a close returned after %v: there is nothing to keep off", d)
	}
}

func TestCloseDoesNotWait(t *testing.T) {
	t.Parallel()
	h, c := victim(t, "x", 0)
	within(t, soon, "Close", func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	// It is closed nevertheless, and its peer learns it.
	within(t, soon, "the end", func() {
		if _, err := h.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the peer reads %v", err)
		}
	})
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a second close: %v", err)
	}
}

// As many as a user may have connections, each with several sockets.
func TestManyClosesDoNotWait(t *testing.T) {
	t.Parallel()
	h, accepted := connected(t, false)
	for range 3 * atOnce {
		for range 4 {
			if err := hostile.Pass(t, h, []byte("x"), hostile.Lingering(t, linger), 0); err != nil {
				t.Fatal(err)
			}
		}
		c, err := New(accepted)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		h, accepted = connected(t, false)
	}
	accepted.Close()
	within(t, soon, "a later close", func() {
		for range atOnce {
			places <- struct{}{}
		}
	})
	for range atOnce {
		<-places
	}
}

// A read returns an error at once, also where the descriptors come with a byte out of band, or behind others.
func TestReadDoesNotReceive(t *testing.T) {
	t.Parallel()
	for _, flags := range []int{0, unix.MSG_OOB} {
		for _, before := range []string{"", "before"} {
			t.Run(fmt.Sprintf("%d%s", flags, before), func(t *testing.T) {
				t.Parallel()
				h, accepted := connected(t, false)
				c, err := New(accepted)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := h.Write([]byte(before)); err != nil {
					t.Fatal(err)
				}
				if err := hostile.Pass(t, h, []byte("x"), hostile.Lingering(t, linger), flags); err != nil {
					t.Fatal(err)
				}
				within(t, soon, "Read", func() {
					got, err := io.ReadAll(io.LimitReader(c, 100))
					if !errors.Is(err, ErrPassed) || string(got) != "" && string(got) != before {
						t.Errorf("it reads %q, %v", got, err)
					}
				})
				within(t, soon, "Close", func() { _ = c.Close() }) // Its error is not what this is about.
			})
		}
	}
}

// Where the kernel refuses them, who passes some learns it, and the connection is like any other.
func TestTheKernelRefuses(t *testing.T) {
	t.Parallel()
	h, accepted := connected(t, true)
	c, err := New(accepted)
	if err != nil {
		t.Fatal(err)
	}
	if !c.refused {
		t.Error("the connection does not have what its listener has set")
	}
	if err := hostile.Pass(t, h, []byte("x"), hostile.Lingering(t, linger), 0); !errors.Is(err, hostile.ErrRefused) {
		t.Errorf("descriptors are passed: %v", err)
	}
	carries(t, h, c)
}

// Who is connected to passes nothing either.
func TestDial(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"unix", "unixpacket"} {
		l, err := net.ListenUnix(network, &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: network})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := Dial(t.Context(), network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		h, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		// A packet is whole, or nothing.
		err = hostile.Pass(t, h, []byte("x"), hostile.Lingering(t, linger), 0)
		if c.refused != errors.Is(err, hostile.ErrRefused) {
			t.Errorf("%s: descriptors are refused: %v, and to pass some fails with %v", network, c.refused, err)
		}
		if _, err := h.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		within(t, soon, "Read", func() {
			b := make([]byte, 16)
			if n, err := c.Read(b); !errors.Is(err, ErrPassed) && string(b[:n]) != "hello" {
				t.Errorf("%s: it reads %q, %v", network, b[:n], err)
			}
		})
		within(t, soon, "Close", func() { _ = c.Close() }) // Its error is not what this is about.
	}
}

func TestConnCarriesBytes(t *testing.T) {
	t.Parallel()
	h, accepted := connected(t, false)
	c, err := New(accepted)
	if err != nil {
		t.Fatal(err)
	}
	carries(t, h, c)
}

// carries checks that all bytes arrive, in parts that are no messages, and that deadlines and the end do.
func carries(t *testing.T, h *net.UnixConn, c *Conn) {
	t.Helper()
	const all = 1 << 20
	sent := make(chan error, 1)
	go func() {
		for n := 0; n < all; n += 1 << 12 {
			if _, err := h.Write(make([]byte, 1<<12)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	if _, err := io.ReadFull(c, make([]byte, all)); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("after the deadline: %v", err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := h.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
		t.Errorf("at the end: %d bytes, %v", len(b), err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("of a closed one: %v", err)
	}
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}
