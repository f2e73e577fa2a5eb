package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/loop"
)

// slowFront takes a connection when the test lets it.
type slowFront struct {
	offered chan int      // the uid of each connection that it is to take, in order
	take    chan struct{} // lets it take one
}

func (f *slowFront) Await(context.Context) error { return nil }

func (f *slowFront) HandOver(ctx context.Context, _ *net.UnixConn, uid int) (*net.UnixConn, error) {
	f.offered <- uid
	select {
	case <-f.take:
	case <-ctx.Done():
	}
	return nil, errors.New("it is one of a test")
}

// However many connections one user has opened before, that of another user is the next one that the front gets.
func TestConnectionsOfALightUserAreNext(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	dir, err := os.MkdirTemp("", "server-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "socket")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	const heavy, light, many = 1001, 1002, 100
	f := &slowFront{offered: make(chan int, many+1), take: make(chan struct{})}
	r := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	ids := NewIdentities(r, &loop.Group{}, "off")
	ids.Table.Store(
		&IdentityTable{Self: -1, AdminGID: -1, ObserverGID: -1, Tenants: []TenantMembers{{Name: "red", UIDs: []int{heavy, light}}}},
	)
	s := &Server{Reporter: r, Front: f, Tasks: &loop.Group{}, Identities: ids}
	capped, err := NewCappedListener(l, ids.HasRole)
	if err != nil {
		t.Fatal(err)
	}
	serving := s.NewServing(t.Context())
	served := make(chan error, 1)
	go func() { served <- serving.Serve(capped) }()
	t.Cleanup(func() {
		_ = serving.Close() // The listener ends with it.
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("it ended with %v", err)
		}
		s.Tasks.Wait()
	})
	waiting := func(uid int) (n int) {
		s.slots.mu.Lock()
		defer s.slots.mu.Unlock()
		k := &s.slots.kinds[passing]
		if i := k.index(uid); i >= 0 {
			n = len(k.waiting[i].waiting)
		}
		return n
	}
	await := func(what string, reached func() bool) {
		t.Helper()
		again, late := time.NewTicker(time.Millisecond), time.After(time.Minute) // There is no event for it.
		defer again.Stop()
		for !reached() {
			select {
			case <-again.C:
			case <-late:
				t.Fatal(what)
			}
		}
	}
	for range many {
		dialAs(t, socket, heavy)
	}
	for range slotsAtOnce[passing] {
		if uid := <-f.offered; uid != heavy {
			t.Fatalf("the first ones are of uid %d", uid)
		}
	}
	await("connections of the heavy user do not wait", func() bool { return waiting(heavy) == many-slotsAtOnce[passing] })
	dialAs(t, socket, light)
	await("the connection of the light user does not wait", func() bool { return waiting(light) == 1 })
	f.take <- struct{}{}
	select {
	case uid := <-f.offered:
		if uid != light {
			t.Errorf("the next connection is of uid %d, want that of the user with one", uid)
		}
	case <-time.After(time.Minute):
		t.Error("the front gets no further connection")
	}
}

// A connection that waits for those of others for too long is answered, without a front that would have read it.
func TestConnectionThatWaitsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Front: &slowFront{}}
		for range slotsAtOnce[passing] {
			if _, err := s.slots.begin(t.Context(), passing, member(1001)); err != nil { // They are never ended.
				t.Fatal(err)
			}
		}
		began := time.Now()
		_, err := s.NewServing(t.Context()).handOver(&cappedConn{peer: &Peer{UID: 1002}})
		if waited := time.Since(began); !errors.Is(err, errOthersFirst) || waited != passTimeout {
			t.Errorf("after %v: %v; want a refusal after %v", waited, err, passTimeout)
		}
	})
}

// Who opens some connections each second is no user of many, however long the front of a busy host takes for each, and however long
// a request waits for the processor.
func TestBusyHostMakesNoUserHeavy(t *testing.T) {
	for kind, name := range map[work]string{passing: "connections", arriving: "requests"} {
		synctest.Test(t, func(t *testing.T) {
			x := slots{processor: func() time.Duration { return 0 }} // A busy host: it lasts, and nothing is computed.
			for range 100 {
				n, err := x.begin(t.Context(), kind, member(2000))
				if err != nil {
					t.Fatal(err)
				}
				<-time.After(200 * time.Millisecond)
				n.end()
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			if used := x.userLocked(2000, time.Now()).used; used > littleTime {
				t.Errorf("%s count as %v, want less than %v", name, used, littleTime)
			}
		})
	}
}
