package adoption

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner/plannertest"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/systemd"
)

// fakeSessions is a fake of systemd and logind.
type fakeSessions struct {
	logins []cgroup.Login
	units  map[string]string
	memory map[int]*uint64
	sets   int
}

func (b *fakeSessions) Logins(context.Context) ([]cgroup.Login, error) { return b.logins, nil }

func (b *fakeSessions) UnitCgroup(_ context.Context, unit string) (string, error) {
	if cg, ok := b.units[unit]; ok {
		return cg, nil
	}
	return "", cgroup.ErrNotFound
}

func (b *fakeSessions) LoginMemory(_ context.Context, uid int) (*uint64, error) {
	return b.memory[uid], nil
}

func (b *fakeSessions) SetLoginMemory(_ context.Context, uid int, limit *uint64) error {
	b.memory[uid] = limit
	b.sets++
	return nil
}

// inPlaceIsolation is the isolation of leases in place.
type inPlaceIsolation struct{ to *cgroup.Attachments }

func scopeOf(l *lease.Lease, p lease.Process) cgroup.Scope {
	return cgroup.Scope{
		ID:      l.ID,
		Slice:   cgroup.SliceName{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name},
		Process: cgroup.Process(p),
		Closed:  true,
		Cgroup:  l.Cgroup,
	}
}

func (v inPlaceIsolation) Isolate(ctx context.Context, l lease.Lease, p lease.Process) (lease.IsolationResult, error) {
	s, err := v.to.StartScope(ctx, scopeOf(&l, p))
	return lease.IsolationResult{Status: api.IsolationStatus{Cgroup: s.Path, Unit: l.Unit}}, err
}

func (v inPlaceIsolation) RemoveIsolation(_ context.Context, l lease.Lease) error {
	v.to.Release(l.ID)
	return nil
}

// watcher ends leases whose cgroup is empty, until its context ends: leases outlive the daemon.
type watcher struct {
	ctx         context.Context // of one run of the daemon
	t           *testing.T
	table       *lease.Table
	attachments *cgroup.Attachments
	watches     sync.WaitGroup
}

func (w *watcher) WatchLease(id string) {
	w.watches.Go(func() {
		err := w.attachments.WaitEmpty(w.ctx, id)
		if w.ctx.Err() != nil {
			return
		}
		if err == nil {
			err = w.table.Ended(w.ctx, id, "its last process ended")
		}
		if err != nil && w.ctx.Err() == nil {
			w.t.Errorf("lease %s was not watched to its end: %v", id, err)
		}
	})
}

// testProcess is a process in a cgroup.
type testProcess struct {
	cgroup.Process
	cgroup string
	kill   func() error
	ended  chan struct{}
}

// fixture is an Adopter with fake sessions.
type fixture struct {
	*Adopter
	t         *testing.T
	dir       string
	sessions  *fakeSessions
	h         cgroup.Hierarchy
	kernel    bool // the cgroups are the kernel's; else they are files that the test writes
	top       string
	ended     chan string // ids of ended leases
	processes []*testProcess
	stop      func() // stops this run of the daemon
}

// withFixtures runs a test with cgroups of plain files, and if possible with those of the kernel.
func withFixtures(t *testing.T, test func(t *testing.T, x *fixture)) {
	t.Helper()
	t.Run("files", func(t *testing.T) { test(t, newFixture(t, cgroup.Hierarchy{Mount: t.TempDir()}, false)) })
	t.Run("kernel", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to make cgroups")
		}
		h, err := cgroup.FindHierarchy()
		if err != nil || !h.Writable() {
			t.Skipf("needs a cgroup v2 hierarchy that may be written (error: %v)", err)
		}
		test(t, newFixture(t, h, true))
	})
}

func newFixture(t *testing.T, h cgroup.Hierarchy, kernel bool) *fixture {
	t.Helper()
	x := &fixture{
		t:        t,
		dir:      t.TempDir(),
		sessions: &fakeSessions{units: map[string]string{}, memory: map[int]*uint64{}},
		h:        h,
		kernel:   kernel,
		ended:    make(chan string, 64),
		top:      "/gpushare-adoption-" + strconv.Itoa(os.Getpid()) + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")),
	}
	x.write(filepath.Join(x.dir, "passwd"), "root:x:0:0::/:\nalice:x:2001:2001::/:\nbob:x:2002:2002::/:\ncarol:x:2003:2003::/:\n")
	x.write(filepath.Join(x.dir, "group"), "lab:x:3000:bob,root\nspeakers:x:3001:carol\n")
	x.start()
	t.Cleanup(func() {
		x.stop()
		x.end(x.processes...)
		if kernel {
			if err := h.Remove(x.top); err != nil {
				t.Error(err)
			}
		}
	})
	return x
}

// start starts an Adopter that knows only what is on disk.
func (x *fixture) start() {
	x.t.Helper()
	r, st := report.NewReporter(slog.New(slog.NewTextHandler(x.t.Output(), nil)), time.Now), state.NewState(nil, false)
	port, observer, attachments := cgroup.NewProcesses("a test"), &observe.Observer{}, cgroup.NewAttachments(
		cgroup.AttachmentsOptions{Mount: x.h.Mount},
	)
	table := lease.New(lease.Config{Isolation: inPlaceIsolation{attachments}, Changed: func(l lease.Lease) {
		if l.State == lease.Ended {
			x.ended <- l.ID
		}
	}})
	identities := server.NewIdentities(r, &loop.Group{}, servertest.UidSelf, "off")
	identities.Spec = func() *api.Spec { return st.Desired().Spec }
	identities.Names = &names.Directory{Passwd: filepath.Join(x.dir, "passwd"), Group: filepath.Join(x.dir, "group")}
	if err := identities.Names.Refresh(x.t.Context(), nil, nil, true); err != nil {
		x.t.Fatal(err)
	}
	identities.Table.Store(&server.IdentityTable{})
	ctx, stop := context.WithCancel(x.t.Context())
	w := &watcher{ctx: ctx, t: x.t, table: table, attachments: attachments}
	x.stop = func() {
		stop()
		w.watches.Wait()
	}
	x.Adopter = &Adopter{
		Reporter:       r,
		State:          st,
		RunDir:         store.RunDir(x.dir),
		Observer:       observer,
		Port:           port,
		Attachments:    attachments,
		Table:          table,
		Identities:     identities,
		Sessions:       x.sessions,
		Hierarchy:      func() (cgroup.Hierarchy, error) { return x.h, nil },
		SampleInterval: func() time.Duration { return time.Hour },
		Wake:           func() {},
		Attribution: &attribution.Attribution{
			Reporter:    r,
			State:       st,
			Port:        port,
			Follow:      port,
			Attachments: attachments,
			Observer:    observer,
			Table:       table,
		},
		Policy: &devicepolicy.Policy{
			Reporter: r,
			State:    st,
			Port:     port,
			Observer: observer,
			Table:    table,
			Logins:   devicepolicy.NewLoginFilter(cgroup.Hierarchy{}, "", x.dir, cgroup.Info{}),
		},
		Leases:   w,
		Adoption: Adoption{Wake: loop.NewWake()},
	}
}

func (x *fixture) write(file, text string) {
	x.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		x.t.Fatal(err)
	}
}

// setProcs writes the files of a cgroup.
func (x *fixture) setProcs(cg, procs, populated string) {
	x.t.Helper()
	x.write(filepath.Join(x.h.Dir(cg), "cgroup.procs"), procs)
	x.write(filepath.Join(x.h.Dir(cg), "cgroup.events"), "populated "+populated+"\nfrozen 0\n")
}

// startProcess starts a process in a cgroup of that name.
func (x *fixture) startProcess(name string) *testProcess {
	x.t.Helper()
	g := &testProcess{cgroup: x.top + "/" + name, ended: make(chan struct{})}
	if err := os.MkdirAll(x.h.Dir(g.cgroup), 0o755); err != nil {
		x.t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	go func() {
		defer close(g.ended)
		_ = cmd.Wait() // It is killed at the end of the test.
	}()
	g.PID, g.kill = cmd.Process.Pid, cmd.Process.Kill
	x.processes = append(x.processes, g)
	var err error
	if g.Start, err = procfs.Start(g.PID); err != nil {
		x.t.Fatal(err)
	}
	if !x.kernel {
		x.setProcs(g.cgroup, strconv.Itoa(g.PID)+"\n", "1")
	} else if err := x.h.Place(g.Process, g.cgroup); err != nil {
		x.t.Fatal(err)
	}
	return g
}

// end kills processes. It may be called again.
func (x *fixture) end(processes ...*testProcess) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, g := range processes {
		if err := g.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			x.t.Error(err)
		}
	}
	for _, g := range processes {
		select {
		case <-g.ended:
		case <-ctx.Done():
			x.t.Errorf("pid %d does not exit", g.PID)
		}
	}
	for _, g := range processes {
		if !x.kernel {
			x.setProcs(g.cgroup, "", "0")
		} else if err := x.h.WaitEmpty(ctx, g.cgroup); err != nil {
			x.t.Error(err)
		}
	}
}

// alive reports whether a process still runs in its cgroup.
func (x *fixture) alive(g *testProcess) bool {
	x.t.Helper()
	busy, err := x.h.Populated(g.cgroup)
	start, startErr := procfs.Start(g.PID)
	if err != nil || !busy || startErr != nil || start != g.Start {
		x.t.Logf("pid %d: populated %v, %v; %v", g.PID, busy, err, startErr)
		return false
	}
	return true
}

// leaseOf returns the lease of a process.
func (x *fixture) leaseOf(g *testProcess) (string, bool) {
	if x.kernel {
		return x.Attribution.LeaseOf(g.PID)
	}
	return x.Attribution.LeaseLookup(1 << 10)(g.PID) // For so many it reads the hierarchy, not /proc.
}

func (x *fixture) login(uid int, name string) *testProcess {
	x.t.Helper()
	g := x.startProcess(systemd.UserSlice(uid))
	x.sessions.logins = append(x.sessions.logins, cgroup.Login{UID: uid, Name: name, Unit: systemd.UserSlice(uid), Cgroup: g.cgroup})
	return g
}

// logout kills the processes of a user and removes the login.
func (x *fixture) logout(uid int) {
	x.t.Helper()
	i := slices.IndexFunc(x.sessions.logins, func(l cgroup.Login) bool { return l.UID == uid })
	x.end(slices.DeleteFunc(slices.Clone(x.processes), func(g *testProcess) bool { return g.cgroup != x.sessions.logins[i].Cgroup })...)
	x.sessions.logins = slices.Delete(x.sessions.logins, i, i+1)
}

// apply applies a spec with these tenants, each with its grants on the one GPU.
func (x *fixture) apply(tenants ...api.TenantSpec) {
	x.t.Helper()
	want, view := plannertest.OneGPU(x.State.Desired().Generation+1, tenants...)
	x.State.SetDesired(want)
	x.Identities.UpdateTable()
	x.Table.Update(view)
}

func (x *fixture) adopt() {
	x.t.Helper()
	if err := x.AdoptAll(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
}

// adopted lists what is adopted now: "alice vision/serve login".
func (x *fixture) adopted() []string {
	out := []string{}
	for _, l := range x.Table.Live() {
		identities := l.User
		if l.Origin == lease.OriginUnit {
			identities = l.Unit
		}
		out = append(out, identities+" "+l.Terms.Tenant+"/"+l.Terms.Spec.Name+" "+l.Origin)
	}
	slices.Sort(out)
	return out
}

func (x *fixture) wantAdopted(when string, adopted ...string) {
	x.t.Helper()
	if got := x.adopted(); !slices.Equal(got, adopted) {
		x.t.Errorf("%s: %q are adopted, want %q", when, got, adopted)
	}
}

// await waits until so many are adopted.
func (x *fixture) await(what string, live int) {
	x.t.Helper()
	late := time.After(10 * time.Second)
	for len(x.Table.Live()) != live {
		select {
		case <-x.ended:
		case <-late:
			x.t.Fatal("not within 10 s: " + what)
		}
	}
}

func (x *fixture) hasCondition(text string) bool {
	return slices.ContainsFunc(
		x.Conditions.List(), func(c api.Condition) bool { return c.Kind == "not-adopted" && strings.Contains(c.Message, text) },
	)
}

func tenantOf(name string, m api.Members, grants ...string) api.TenantSpec {
	t := api.TenantSpec{Name: name, Members: m, Adopt: &api.AdoptSpec{Logins: grants[0]}}
	for _, g := range grants {
		t.Grants = append(t.Grants, api.GrantSpec{Name: g, Timeslice: &api.ShareSpec{Share: 20}})
	}
	return t
}
