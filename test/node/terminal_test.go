package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/test/harness"
)

// screen records the output of a pseudo terminal.
type screen struct {
	mu   sync.Mutex // guards the fields below
	b    []byte
	more chan struct{} // closed at new output
	keys *os.File      // what is written to it is typed
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.b)
}

func (s *screen) await(ctx context.Context, text string) error {
	for {
		s.mu.Lock()
		got, more := string(s.b), s.more
		s.mu.Unlock()
		if strings.Contains(got, text) {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("the terminal does not show %q: %w:\n%s", text, ctx.Err(), got)
		}
	}
}

func (s *screen) show(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = append(s.b, b...)
	close(s.more)
	s.more = make(chan struct{})
}

// onTerminal starts gpushare run with a pseudo terminal of its own, as a shell in a terminal window would.
func onTerminal(t *testing.T, n *harness.Node, args ...string) (*screen, *harness.Job) {
	t.Helper()
	s, tty := openTerminal(t)
	job, err := n.RunOn(tty, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	return s, job
}

// openTerminal opens a pseudo terminal.
func openTerminal(t *testing.T) (*screen, *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("this host has no pseudo terminals: %v", err)
	}
	master := os.NewFile(uintptr(fd), "ptmx")
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join("/dev/pts", fmt.Sprint(number))
	if err := os.Chmod(name, 0o620); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	s := &screen{more: make(chan struct{}), keys: master}
	var reader sync.WaitGroup
	reader.Go(func() {
		buf := make([]byte, 4096)
		for {
			k, err := master.Read(buf)
			if err != nil {
				return
			}
			s.show(buf[:k])
		}
	})
	t.Cleanup(func() {
		tty.Close()
		master.Close()
		reader.Wait()
	})
	return s, tty
}

// eventStream follows the events of a node.
type eventStream struct {
	mu     sync.Mutex // guards the fields below
	events []api.Event
	more   chan struct{}
}

func follow(t *testing.T, n *harness.Node) *eventStream {
	t.Helper()
	e := &eventStream{more: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	c := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return client.Dial(ctx, n.Socket())
		}},
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://gpushare/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	// The answer begins when the subscription exists. Earlier events are not delivered.
	w, err := c.Do(q)
	if err != nil || w.StatusCode != http.StatusOK {
		t.Fatalf("cannot follow events: %v, %+v", err, w)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer w.Body.Close()
		for in := json.NewDecoder(w.Body); ; {
			var x api.Event
			if in.Decode(&x) != nil {
				return // The test or the daemon has ended.
			}
			e.mu.Lock()
			e.events = append(e.events, x)
			close(e.more)
			e.more = make(chan struct{})
			e.mu.Unlock()
		}
	})
	t.Cleanup(func() { stop(); reader.Wait() })
	return e
}

// await waits for an event of a kind about a lease.
func (e *eventStream) await(t *testing.T, kind, id string) api.Event {
	t.Helper()
	return e.awaitUntil(soon(t), t, kind, id)
}

// awaitUntil waits for it until ctx has ended.
func (e *eventStream) awaitUntil(ctx context.Context, t *testing.T, kind, id string) api.Event {
	t.Helper()
	for {
		e.mu.Lock()
		more := e.more
		for _, x := range e.events {
			if x.Kind == kind && x.Lease == id {
				e.mu.Unlock()
				return x
			}
		}
		e.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("no event %s of %s", kind, id)
		}
	}
}
