package leases

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// endedLimits has the cgroups whose limits were removed.
type endedLimits struct {
	memoryLimits
	mu      sync.Mutex // guards what follows
	removed []string
}

func (e *endedLimits) End(_ context.Context, l *lease.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.removed = append(e.removed, l.Cgroups()...)
}

// releasing removes the isolation of leases in place as the daemon does.
type releasing struct {
	leasetest.NoIsolation
	ls *Leases
}

func (r releasing) RemoveIsolation(ctx context.Context, l lease.Lease) error {
	r.ls.releaseInPlace(ctx, &l)
	return nil
}

// newKept has a kept lease that runs in the cgroup one, which needs not be there. ending is called when it begins to end.
func newKept(t *testing.T, ending func()) (*Leases, *endedLimits, string) {
	t.Helper()
	limits := &endedLimits{}
	ls := &Leases{
		Reporter:    report.NewReporter(slog.New(slog.DiscardHandler), time.Now),
		Attachments: cgroup.NewAttachments(cgroup.AttachmentsOptions{Mount: t.TempDir()}),
		Follow:      cgroup.NewProcesses(""),
		Memory:      limits,
		Attribution: &attribution.Attribution{},
	}
	ls.Table = leasetest.TableOf(t, lease.Config{Isolation: releasing{ls: ls}, Changed: func(l lease.Lease) {
		if l.State == lease.Ending {
			ending()
		}
	}}, "red", "part", 1001)
	k, err := ls.Table.Submit(lease.Request{
		Tenant: "red", Admin: true, Origin: lease.OriginAttached, Engine: &lease.Engine{Key: "kubernetes:1", Kept: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !ls.Table.NameCgroup(k.ID(), "/none/one") {
		t.Fatal("it has no cgroup")
	}
	l, _, err := ls.Table.Start(t.Context(), k.ID(), lease.Process{PID: 1 << 30, Start: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ls.Attachments.StartScope(t.Context(), scopeOf(&l, cgroup.Process(l.Process), nil)); err != nil {
		t.Fatal(err)
	}
	return ls, limits, l.ID
}

// A lease that ends while a cgroup is joined to it leaves no scope and no limit: its cgroups are free for the next lease.
func TestALeaseEndsWhileACgroupIsJoined(t *testing.T) {
	if _, err := cgroup.FindHierarchy(); err != nil {
		t.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	t.Parallel()
	ending, ended := make(chan struct{}), make(chan error, 1)
	ls, limits, id := newKept(t, sync.OnceFunc(func() { close(ending) }))
	_, err := ls.SetCgroups(t.Context(), id, func(now *lease.Lease) ([]string, error) {
		go func() { ended <- ls.Table.Ended(t.Context(), id, "its time is over") }()
		<-ending
		return append(now.Cgroups(), "/none/two"), nil
	})
	if !errors.Is(err, errNotRunning) {
		t.Errorf("the join: %v", err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := ls.Attachments.Members(t.Context(), id); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("the scope of the lease that ended is there: %v", err)
	}
	for _, cg := range []string{"/none/one", "/none/two"} {
		if !slices.Contains(limits.removed, cg) {
			t.Errorf("the limit of %s is there; removed are %v", cg, limits.removed)
		}
	}
	again := func(*lease.Lease) ([]string, error) { return []string{"/none/one"}, nil }
	if _, err := ls.SetCgroups(t.Context(), id, again); !errors.Is(err, errNotRunning) {
		t.Errorf("a join after the end: %v", err)
	}
	if _, err := ls.Attachments.Members(t.Context(), id); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("a join after the end started a scope: %v", err)
	}
}

// A join that fails leaves the lease the cgroups of before.
func TestAFailedJoinChangesNothing(t *testing.T) {
	if _, err := cgroup.FindHierarchy(); err != nil {
		t.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	t.Parallel()
	ls, _, id := newKept(t, func() {})
	other := cgroup.Scope{ID: "l-9", Kept: true, Cgroup: "/none/two", Closed: true}
	if _, err := ls.Attachments.StartScope(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	refused := &api.Error{Kind: api.KindUnavailable, Message: "it is full"}
	for _, c := range []struct {
		name    string
		cgroups []string
		err     error
		want    error
	}{
		{"of another lease", []string{"/none/one", "/none/two"}, nil, cgroup.ErrInUse},
		{"none", nil, nil, errNoCgroup},
		{"refused", []string{"/none/one"}, refused, refused},
		{"the same", []string{"/none/one"}, nil, nil},
	} {
		next := func(*lease.Lease) ([]string, error) { return c.cgroups, c.err }
		if _, err := ls.SetCgroups(t.Context(), id, next); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if l, _ := ls.Table.Get(id); !slices.Equal(l.Cgroups(), []string{"/none/one"}) {
			t.Errorf("%s: it has %v", c.name, l.Cgroups())
		}
		if _, err := ls.Attachments.Members(t.Context(), id); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
