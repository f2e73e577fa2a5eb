package engines

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// fakeLives has one cgroup, with a process or without.
type fakeLives struct {
	lives
	cgroups
	p *cgroup.Process
}

func (f *fakeLives) EngineCgroup(name string, _ ...int) (string, *cgroup.Process, error) {
	return name, f.p, nil
}

func (*fakeLives) CleanCgroup(name string) (string, error) {
	return strings.TrimPrefix(name, "/sys/fs/cgroup"), nil
}

func (*fakeLives) WatchLease(string) {}

// newEngines has a lease of a cgroup that had to have a process a second ago.
func newEngines(t *testing.T, p *cgroup.Process) (*Engines, lease.Lease) {
	t.Helper()
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	table := leasetest.TableOf(t, lease.Config{Isolation: leasetest.NoIsolation{}, Now: clock}, "red", "part", 1001)
	en := &Engines{
		Reporter: report.NewReporter(
			slog.New(slog.DiscardHandler),
			clock,
		),
		Table:   table,
		Leases:  &fakeLives{p: p},
		Cgroups: &fakeLives{p: p},
		Wake:    func() {},
		Tasks:   &loop.Group{},
	}
	k, err := table.Submit(lease.Request{
		Tenant: "red", Admin: true, Origin: lease.OriginAttached, Engine: &lease.Engine{Key: "slurm:1", BindBy: now.Add(-time.Second)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !table.NameCgroup(k.ID(), "/jobs/job_1") {
		t.Fatal("it has no cgroup")
	}
	l, _ := table.Get(k.ID())
	return en, l
}

// A lease whose time is over is bound if its cgroup has processes: they may have come while no daemon ran. Without one it ends.
func TestBindWhenTheTimeIsOver(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*cgroup.Process{"a process": {PID: 42, Start: 7}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			en, l := newEngines(t, p)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			en.waiters.add(l.ID)
			for en.awaitOnce(ctx, l.ID) {
			}
			now, live := en.Table.Get(l.ID)
			if p != nil && (!live || now.State != lease.Running || now.Process.PID != p.PID) {
				t.Errorf("it is %v: %v %+v", live, now.State, now.Process)
			}
			if k, ended := en.Table.KeyEnded(
				"slurm:1",
			); p == nil &&
				(live || !ended || !strings.Contains(k.Reason, "it had no process until")) {
				t.Errorf("it is live: %v, and ended %v: %s", live, ended, k.Reason)
			}
		})
	}
}

// The cgroup of a second request is that of the first, with or without the path of its hierarchy, or it is refused.
func TestCgroupOfASecondRequest(t *testing.T) {
	t.Parallel()
	en, l := newEngines(t, nil)
	for cg, same := range map[string]bool{
		"":                          true,
		"/jobs/job_1":               true,
		"/sys/fs/cgroup/jobs/job_1": true,
		"/other/jobs/job_1":         false,
		"/jobs/job_1/step":          false,
		"/jobs":                     false,
	} {
		if err := en.sameAs(&l, &api.EngineRequest{Key: "slurm:1", Cgroup: cg}, &lease.EngineTerms{}); (err == nil) != same {
			t.Errorf("%q: %v", cg, err)
		}
	}
}
