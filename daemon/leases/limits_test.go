package leases

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// endingPort is a port whose scopes end with one result.
type endingPort struct {
	cgroup.Port
	end error
}

func (r endingPort) WaitEmpty(context.Context, string) error { return r.end }

// fakeIsolation reports a cgroup.
type fakeIsolation struct{ leasetest.NoIsolation }

func (fakeIsolation) Isolate(context.Context, lease.Lease, lease.Process) (lease.IsolationResult, error) {
	return lease.IsolationResult{Status: api.IsolationStatus{Cgroup: "/red"}}, nil
}

// The reason of a lease's end is reported if it is known.
func TestLeaseEndReason(t *testing.T) {
	for _, c := range []struct {
		end           error
		reason, event string
	}{
		{nil, "its last process ended", "the last process ended"},
		{cgroup.ErrNotFound, "its last process ended", "the last process ended"},
		{cgroup.ErrOutOfMemory, "the kernel killed it: out of memory", "the kernel killed it: out of memory"},
	} {
		d := &Leases{
			Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Wake: func() {},
			Attribution: &attribution.Attribution{Port: endingPort{end: c.end}},
		}
		d.Table = leasetest.TableOf(t, lease.Config{Isolation: fakeIsolation{}, Changed: func(l lease.Lease) {
			if l.State == lease.Ended {
				d.Ended.Add(l)
			}
		}}, "red", "part", 1001)
		events, stop := d.Events.Subscribe()
		d.watchUntilEmpty(t.Context(), d.Table.Live()[0].ID)
		stop()
		if all := d.Ended.all(); len(all) != 1 || all[0].Lease.Reason != c.reason {
			t.Errorf("%v: the ended leases are %+v", c.end, all)
		}
		if e := <-events.C; e.Kind != "lease.ended" || e.Message != c.event {
			t.Errorf("%v: the event is %+v", c.end, e)
		}
	}
}

// slowPort is a port that cannot always answer whether a scope exists.
type slowPort struct {
	cgroup.Port
	answers *[]error
}

func (slowPort) Info() cgroup.Info { return cgroup.Info{Adapter: "systemd"} }

func (slowPort) Thaw(context.Context, string) error { return nil }

func (s slowPort) Recover(context.Context, cgroup.Scope) (cgroup.ScopeState, error) {
	err := (*s.answers)[0]
	*s.answers = (*s.answers)[1:]
	return cgroup.ScopeState{}, err
}

// A lease of the previous run is not taken for ended while the service manager does not answer.
func TestRecoverRetriesWhileUnknown(t *testing.T) {
	for _, c := range []struct {
		answers []error
		found   bool
		takes   time.Duration
	}{
		{[]error{nil}, true, 0},
		{[]error{cgroup.ErrNotFound}, false, 0},
		{[]error{context.DeadlineExceeded, errors.New("no answer"), nil}, true, 2 * recoverRetryInterval},
		{[]error{context.DeadlineExceeded, cgroup.ErrNotFound}, false, recoverRetryInterval},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &Leases{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Port: slowPort{answers: &c.answers}}
			d.Table = leasetest.TableOf(t, lease.Config{Isolation: fakeIsolation{}}, "red", "part", 1001)
			l, began := d.Table.Live()[0], time.Now()
			found, err := d.recoverLease(t.Context(), &l)
			if found != c.found || err != nil || time.Since(began) != c.takes || len(c.answers) > 0 {
				t.Errorf("found %v, %v, after %v; %d answers are left", found, err, time.Since(began), len(c.answers))
			}
			end, cancel := context.WithCancel(t.Context())
			cancel()
			c.answers = []error{context.Canceled}
			if _, err := d.recoverLease(end, &l); !errors.Is(err, context.Canceled) {
				t.Errorf("when the daemon ends: %v", err)
			}
		})
	}
}
