package leases

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// A member may not stop a lease of another user, and cannot learn whether another tenant's lease exists.
func TestStopLeaseIsRefused(t *testing.T) {
	ls := &Leases{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now),
		Table:    leasetest.TableWith(t, "vision", "part", servertest.UidAlice),
	}
	h := servertest.Handler(ls.Reporter, server.Route{
		Method:  http.MethodDelete,
		Pattern: "/v1/leases/{id}",
		Access:  server.Member,
		What:    "stop a lease",
		Handle:  ls.DeleteLease,
	})
	id := ls.Table.Live()[0].ID
	for _, c := range []struct {
		name   string
		p      *server.Peer
		id     string
		status int
	}{
		{"another tenant's member", &server.Peer{UID: 1005, GID: servertest.GidOther}, id, http.StatusNotFound},
		{"no such lease", &server.Peer{UID: servertest.UidAlice}, "no-such-lease", http.StatusNotFound},
		{"a member of the same tenant", &server.Peer{UID: 1004, GID: servertest.GidVision}, id, http.StatusForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := servertest.Request(h, c.p, http.MethodDelete, "/v1/leases/"+c.id, nil)
			if e := servertest.ErrorOf(t, w); w.Code != c.status || strings.Contains(e.Message, "command") {
				t.Errorf("answered with %d, want %d: %+v", w.Code, c.status, e)
			}
		})
	}
	if len(ls.Table.Live()) != 1 {
		t.Error("the lease was ended")
	}
}

// failing keeps the isolation of leases.
type failing struct{ leasetest.NoIsolation }

func (failing) RemoveIsolation(context.Context, lease.Lease) error { return errors.New("a test") }

// A lease that was about to end, without a stop, when the daemon was killed ends: its processes are not stopped. The next daemon of one that
// was being stopped stops it: test/node.
func TestAnEndIsResumed(t *testing.T) {
	before := leasetest.TableOf(t, lease.Config{Isolation: failing{}}, "vision", "part", servertest.UidAlice)
	id := before.Live()[0].ID
	if err := before.Ended(t.Context(), id, "released"); err == nil {
		t.Fatal("it ended")
	}
	b, err := before.State()
	if err != nil {
		t.Fatal(err)
	}
	ls := &Leases{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now),
		Tasks:    &loop.Group{},
		Table:    lease.New(lease.Config{Isolation: leasetest.NoIsolation{}}),
	}
	if err := ls.Table.Restore(b); err != nil {
		t.Fatal(err)
	}
	if l, ok := ls.Table.Get(id); !ok || l.State != lease.Ending || l.Stopping {
		t.Fatalf("the record has %+v", l)
	}
	ls.resumeEnds()
	ls.Tasks.Wait()
	if l, ok := ls.Table.Get(id); ok {
		t.Errorf("it is there: %+v", l)
	}
}
