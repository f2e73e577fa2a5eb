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
	"github.com/gpushare/gpushare/internal/kernel/passed"
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

// passingFixture is a server of two members, whose front takes what it gets when the test lets it.
type passingFixture struct {
	t      *testing.T
	s      *Server
	front  *slowFront
	socket string
	capped *cappedListener
}

const heavy, light = 1001, 1002 // uids

func newPassing(t *testing.T, f *slowFront) *passingFixture {
	t.Helper()
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
	r := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	ids := NewIdentities(r, &loop.Group{}, -1, "off")
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
	return &passingFixture{t, s, f, socket, capped}
}

// waiting is how many connections of a user wait for the front.
func (p *passingFixture) waiting(uid int) (n int) {
	p.s.slots.mu.Lock()
	defer p.s.slots.mu.Unlock()
	k := &p.s.slots.kinds[passing]
	if i := k.index(uid); i >= 0 {
		n = len(k.waiting[i].waiting)
	}
	return n
}

// counted is how many connections of a user there are.
func (p *passingFixture) counted(uid int) int {
	p.capped.mu.Lock()
	defer p.capped.mu.Unlock()
	return len(p.capped.byUID[uid])
}

func (p *passingFixture) await(what string, limit time.Duration, reached func() bool) {
	p.t.Helper()
	again, late := time.NewTicker(time.Millisecond), time.After(limit) // There is no event for it.
	defer again.Stop()
	for !reached() {
		select {
		case <-again.C:
		case <-late:
			p.t.Fatal(what)
		}
	}
}

// fill lets the front have all that it takes at a time, of the heavy user.
func (p *passingFixture) fill() {
	p.t.Helper()
	for range slotsAtOnce[passing] {
		dialAs(p.t, p.socket, heavy)
	}
	for range slotsAtOnce[passing] {
		if uid := <-p.front.offered; uid != heavy {
			p.t.Fatalf("the first ones are of uid %d", uid)
		}
	}
}

// However many connections one user has opened before, that of another user is the next one that the front gets.
func TestConnectionsOfALightUserAreNext(t *testing.T) {
	const many = 100
	f := &slowFront{offered: make(chan int, many+1), take: make(chan struct{})}
	p := newPassing(t, f)
	p.fill()
	for range many - slotsAtOnce[passing] {
		dialAs(t, p.socket, heavy)
	}
	p.await("connections of the heavy user do not wait", time.Minute, func() bool { return p.waiting(heavy) == many-slotsAtOnce[passing] })
	dialAs(t, p.socket, light)
	p.await("the connection of the light user does not wait", time.Minute, func() bool { return p.waiting(light) == 1 })
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

// A caller who closes a connection that waits gives up its place at once, and one who only has nothing more to send waits for the answer.
func TestCallersWhoHangUpGiveUpTheirPlace(t *testing.T) {
	f := &slowFront{offered: make(chan int, 64), take: make(chan struct{})}
	p := newPassing(t, f)
	p.fill()
	const each = 10
	var leave []net.Conn
	dial := func(sends bool) net.Conn {
		t.Helper()
		c := dialAs(t, p.socket, heavy)
		if sends {
			if _, err := c.Write([]byte("GET /v1/status HTTP/1.1\r\nHost: gpushare\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	for i := range 2 * each {
		leave = append(leave, dial(i%2 == 0))
	}
	halfClosed := dial(true)
	if err := halfClosed.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	p.await("not all connections wait", time.Minute, func() bool { return p.waiting(heavy) == len(leave)+1 })
	began := time.Now()
	for _, c := range leave {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Later they end because they have waited for too long.
	p.await("connections that were closed still wait", passTimeout*2/3, func() bool {
		return p.waiting(heavy) == 1 && p.counted(heavy) == slotsAtOnce[passing]+1
	})
	t.Logf("%d connections that were closed were removed after %v", len(leave), time.Since(began))
	f.take <- struct{}{}
	select {
	case <-f.offered:
	case <-time.After(time.Minute):
		t.Error("the front does not get the connection of the caller who waits for the answer")
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
		_, err := s.NewServing(t.Context()).handOver(&cappedConn{Conn: &passed.Conn{UnixConn: new(net.UnixConn)}, peer: &Peer{UID: 1002}})
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
