package engines

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// fakeLives has one cgroup, with a process or without.
type fakeLives struct {
	lives
	cgroups
	p    *cgroup.Process
	fail func(cg string) error // nil: every cgroup may be attached
}

func (f *fakeLives) EngineCgroup(name string, _ ...int) (string, *cgroup.Process, error) {
	if f.fail != nil {
		if err := f.fail(name); err != nil {
			return "", nil, err
		}
	}
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
	return en, jobLease(t, table, now.Add(-time.Second))
}

// jobLease is one of a job, which ends with its processes. It has to have one by then.
func jobLease(t *testing.T, table *lease.Table, by time.Time) lease.Lease {
	t.Helper()
	k, err := table.Submit(lease.Request{
		Tenant: "red", Admin: true, Origin: lease.OriginAttached, Engine: &lease.Engine{Key: "slurm:1", BindBy: by},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !table.NameCgroup(k.ID(), "/jobs/job_1") {
		t.Fatal("it has no cgroup")
	}
	l, _ := table.Get(k.ID())
	return l
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
			for en.awaitOnce(ctx, l.ID, new(failure)) {
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

// Of a lease that has the most cgroups those of pods that ended make place for one more, and those that come yet do not.
func TestCgroupsOfPodsThatEndedMakePlace(t *testing.T) {
	t.Parallel()
	en, _ := newEngines(t, nil)
	h := cgroup.Hierarchy{Mount: t.TempDir()}
	en.Hierarchy = func() (cgroup.Hierarchy, error) { return h, nil }
	k, err := en.Table.Submit(lease.Request{
		Tenant: "red", Admin: true, Origin: lease.OriginAttached, Engine: &lease.Engine{Key: "kubernetes:1", Kept: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range api.MostCgroups {
		names = append(names, fmt.Sprintf("/pods/%d", i))
		if !en.Table.NameCgroup(k.ID(), names[i]) {
			t.Fatal(names[i])
		}
	}
	l, _, err := en.Table.Start(t.Context(), k.ID(), lease.Process{PID: 42, Start: 7})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := en.withCgroup(&l, "/pods/more"); err == nil {
		t.Error("cgroups that come yet made place")
	}
	if cgroups, err := en.withCgroup(&l, names[3]); err != nil || !slices.Equal(cgroups, names) {
		t.Errorf("a cgroup that it has: %v, %v", cgroups, err)
	}
	en.Table.SetBegun(l.ID, func(cg string) bool { return cg == names[0] || cg == names[1] })
	if err := os.MkdirAll(h.Dir(names[1]), 0o755); err != nil {
		t.Fatal(err)
	}
	l, _ = en.Table.Get(l.ID)
	want := append(slices.DeleteFunc(slices.Clone(names), func(cg string) bool { return cg == names[0] }), "/pods/more")
	cgroups, err := en.withCgroup(&l, "/pods/more")
	if err != nil || !slices.Equal(cgroups, want) {
		t.Errorf("it has %v: %v", cgroups, err)
	}
	if !en.Table.SetCgroups(l.ID, cgroups) {
		t.Fatal("it does not get them")
	}
	if l, _ = en.Table.Get(l.ID); !slices.Equal(l.Engine.Begun, []string{names[1]}) {
		t.Errorf("known to have begun are %v", l.Engine.Begun)
	}
}

// flaky is an isolation that fails as long as it has errors.
type flaky struct {
	leasetest.NoIsolation
	fail []error
}

func (f *flaky) Isolate(context.Context, lease.Lease, lease.Process) (lease.IsolationResult, error) {
	if len(f.fail) == 0 {
		return lease.IsolationResult{}, nil
	}
	err := f.fail[0]
	f.fail = f.fail[1:]
	return lease.IsolationResult{}, err
}

// keptEngines has a kept lease with two cgroups that waits for its processes.
func keptEngines(t *testing.T, c lease.Config, l *fakeLives) (*Engines, string) {
	t.Helper()
	en := &Engines{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Leases: l, Cgroups: l, Wake: func() {}, Tasks: &loop.Group{},
		Table: leasetest.TableOf(t, c, "red", "part", 1001),
	}
	k, err := en.Table.Submit(lease.Request{
		Tenant: "red", Admin: true, Origin: lease.OriginAttached, Engine: &lease.Engine{Key: "kubernetes:1", Kept: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, cg := range []string{"/pods/one", "/pods/two"} {
		if !en.Table.NameCgroup(k.ID(), cg) {
			t.Fatal(cg)
		}
	}
	return en, k.ID()
}

// A kept lease that cannot be bound waits on with its place, and is bound when it can be.
func TestAKeptLeaseIsBoundAgain(t *testing.T) {
	t.Parallel()
	in := &flaky{}
	fails := 0
	lives := &fakeLives{p: &cgroup.Process{PID: 42, Start: 7}, fail: func(string) error {
		if fails++; fails == 1 {
			return errors.New("the cgroup could not be read")
		}
		return nil
	}}
	en, id := keptEngines(t, lease.Config{Isolation: in}, lives)
	in.fail = []error{errors.New("the driver does not answer"), context.DeadlineExceeded}
	for i := range 3 {
		l, _ := en.Table.Get(id)
		if en.bind(t.Context(), &l, new(failure)) {
			t.Errorf("time %d: it is not tried again", i)
		}
		if now, ok := en.Table.Get(id); !ok || !now.AwaitsCgroup() || now.Place.GPUs[0] != l.Place.GPUs[0] || now.Started != nil {
			t.Fatalf("time %d: it is %+v", i, now)
		}
	}
	l, _ := en.Table.Get(id)
	if !en.bind(t.Context(), &l, new(failure)) {
		t.Error("it is not bound")
	}
	if now, ok := en.Table.Get(id); !ok || now.State != lease.Running || now.Process.PID != 42 {
		t.Errorf("it is %+v", now)
	}
}

// A lease that ends with its processes and cannot be bound is tried again too, until its time is over: then it ends with the last reason. A
// refusal ends it at once.
func TestALeaseOfAJobIsBoundAgain(t *testing.T) {
	t.Parallel()
	ready := func() (*Engines, string, *fakeLives, *flaky) {
		in, lives := &flaky{}, &fakeLives{p: &cgroup.Process{PID: 42, Start: 7}}
		en, _ := keptEngines(t, lease.Config{Isolation: in}, lives)
		return en, jobLease(t, en.Table, time.Now().Add(time.Hour)).ID, lives, in
	}
	en, id, _, in := ready()
	in.fail = []error{cgroup.ErrNotFound, context.DeadlineExceeded}
	for i, bound := range []bool{false, false, true} {
		l, _ := en.Table.Get(id)
		if en.bind(t.Context(), &l, new(failure)) != bound {
			t.Errorf("time %d: it is bound: %v", i, !bound)
		}
		if now, ok := en.Table.Get(id); !ok || now.AwaitsCgroup() == bound || len(en.Conditions.List()) == 0 != bound {
			t.Errorf("time %d: it is %+v, %v", i, now, en.Conditions.List())
		}
	}
	for _, c := range []struct {
		err  error
		over time.Duration // its time, since then
		says string
	}{
		{&api.Error{Kind: api.KindDenied, Message: "it belongs to blue"}, 0, "it belongs to blue"},
		{errors.New("the driver does not answer"), 2 * time.Hour, "could not be bound: the driver does not answer"},
	} {
		en, id, lives, _ := ready()
		en.Now = func() time.Time { return time.Now().Add(c.over) }
		lives.fail = func(string) error { return c.err }
		en.waiters.add(id)
		failed := new(failure)
		if l, _ := en.Table.Get(id); c.over == 0 {
			en.bind(t.Context(), &l, failed)
		} else if en.awaitOnce(t.Context(), id, failed) {
			t.Errorf("%v: it waits on", c.err)
		}
		if k, ended := en.Table.KeyEnded("slurm:1"); !ended || !strings.Contains(k.Reason, c.says) {
			t.Errorf("%v: it has ended: %v, %q", c.err, ended, k.Reason)
		}
	}
}

// A kept lease that cannot be bound for good is tried each second at first, and then at least each minute. A condition says why, until it
// is bound.
func TestALeaseThatCannotBeBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // protects tries
		var tries []time.Duration
		begin := time.Now()
		var corrected atomic.Bool
		lives := &fakeLives{p: &cgroup.Process{PID: 42, Start: 7}, fail: func(string) error {
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Since(begin))
			if corrected.Load() {
				return nil
			}
			return fmt.Errorf("the map has no place: attempt %d", len(tries))
		}}
		en, id := keptEngines(t, lease.Config{Isolation: leasetest.NoIsolation{}}, lives)
		populated(t, en, "/pods/one", "1")
		ctx, cancel := context.WithCancel(t.Context())
		en.Tasks.Begin(ctx)
		defer en.Tasks.Wait()
		defer cancel()
		en.await(id)
		time.Sleep(10 * time.Minute) // of the bubble
		synctest.Wait()
		mu.Lock()
		tried := slices.Clone(tries)
		mu.Unlock()
		if len(tried) < 15 || len(tried) > 25 || tried[4] > 5*time.Second || tried[len(tried)-1] < 9*time.Minute {
			t.Errorf("tried %d times, at %v", len(tried), tried)
		}
		is := en.Conditions.List()
		if len(is) != 1 || is[0].Kind != conditionNotBound || !strings.Contains(is[0].Message, "the map has no place") ||
			time.Since(is[0].Since) < 9*time.Minute {
			t.Errorf("conditions %+v", is)
		}
		corrected.Store(true)
		time.Sleep(longestRebind) // of the bubble
		synctest.Wait()
		if l, ok := en.Table.Get(id); !ok || l.State != lease.Running {
			t.Errorf("it is %+v", l)
		}
		if is := en.Conditions.List(); len(is) != 0 {
			t.Errorf("conditions %+v", is)
		}
	})
}

// Other cgroups of a lease are tried at once, whatever pause the old ones have, and its end does not wait for one.
func TestOtherCgroupsEndThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		en, id := keptEngines(t, lease.Config{Isolation: leasetest.NoIsolation{}, Changed: nil}, &fakeLives{})
		l, _ := en.Table.Get(id)
		for _, change := range []func(){
			func() { en.Table.DropCgroup(id, "/pods/two") },
			func() { en.drop(t.Context(), &l, "it is released") },
		} {
			l, _ = en.Table.Get(id)
			en.waiters.add(id)
			begin, done := time.Now(), make(chan struct{})
			go func() {
				defer close(done)
				en.pause(t.Context(), &l, &failure{pause: longestRebind})
			}()
			synctest.Wait()
			en.Changed(&l) // An attempt that failed.
			synctest.Wait()
			change()
			en.Changed(&l)
			<-done
			if d := time.Since(begin); d > time.Second {
				t.Errorf("it waited %v", d)
			}
		}
	})
}

// A cgroup of another user is taken from a kept lease that waits for its processes, which is bound to the other one.
func TestAForeignCgroupIsTakenOut(t *testing.T) {
	t.Parallel()
	foreign := func(cg string) error {
		if cg == "/pods/one" {
			return &api.Error{Kind: api.KindDenied, Message: "it belongs to another user"}
		}
		return nil
	}
	en, id := keptEngines(
		t, lease.Config{Isolation: leasetest.NoIsolation{}}, &fakeLives{p: &cgroup.Process{PID: 42, Start: 7}, fail: foreign},
	)
	l, _ := en.Table.Get(id)
	if !en.bind(t.Context(), &l, new(failure)) {
		t.Error("it is not bound")
	}
	if now, ok := en.Table.Get(id); !ok || now.State != lease.Running || !slices.Equal(now.Cgroups(), []string{"/pods/two"}) {
		t.Errorf("it is %+v", now)
	}
	if en.Table.DropCgroup(id, "/pods/two") {
		t.Error("a lease that runs waits for no cgroup")
	}
}

// What a request of a kept lease is answered with is recorded, also where the request before could not record it.
func TestAKeptLeaseIsAnsweredWhenItIsRecorded(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left on device")
	var fail error
	save := func(context.Context, []byte) error { return fail }
	en, id := keptEngines(t, lease.Config{Isolation: leasetest.NoIsolation{}, Save: save}, &fakeLives{})
	if _, _, err := en.Table.Start(t.Context(), id, lease.Process{PID: 42, Start: 7}); err != nil {
		t.Fatal(err)
	}
	fail = full
	l, _ := en.Table.Get(id)
	if !en.Table.SetCgroups(id, append(l.Cgroups(), "/pods/three")) || !errors.Is(en.Table.Record(t.Context()), full) {
		t.Fatal("the join is recorded")
	}
	l, _ = en.Table.Get(id)
	c := &server.Call{R: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/engine/leases", http.NoBody)}
	if err := en.answer(t.Context(), c, l, true, "/pods/three", nil); !errors.Is(err, full) {
		t.Errorf("the join that is repeated: %v", err)
	}
}
