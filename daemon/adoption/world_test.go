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
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/systemd"
)

// bookkeeper stands for systemd and logind: it says who is there.
type bookkeeper struct {
	logins []cgroup.Login
	units  map[string]string
	memory map[int]*uint64
	sets   int
}

func (b *bookkeeper) Logins(context.Context) ([]cgroup.Login, error) { return b.logins, nil }

func (b *bookkeeper) UnitCgroup(_ context.Context, unit string) (string, error) {
	if cg, ok := b.units[unit]; ok {
		return cg, nil
	}
	return "", cgroup.ErrNotFound
}

func (b *bookkeeper) LoginMemory(_ context.Context, uid int) (*uint64, error) {
	return b.memory[uid], nil
}

func (b *bookkeeper) SetLoginMemory(_ context.Context, uid int, limit *uint64) error {
	b.memory[uid] = limit
	b.sets++
	return nil
}

// visits are the walls of leases whose processes stay where they are.
type visits struct{ to *cgroup.Attachments }

func scopeOf(l *lease.Lease, p lease.Process) cgroup.Scope {
	return cgroup.Scope{ID: l.ID, Slice: cgroup.SliceName{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}, Process: cgroup.Process(p), Closed: true, Cgroup: l.Cgroup}
}

func (v visits) Wall(ctx context.Context, l lease.Lease, p lease.Process) (lease.Inside, error) {
	s, err := v.to.StartScope(ctx, scopeOf(&l, p))
	return lease.Inside{Status: api.IsolationStatus{Cgroup: s.Path, Unit: l.Unit}}, err
}

func (v visits) Unwall(_ context.Context, l lease.Lease) error {
	v.to.Release(l.ID)
	return nil
}

// watcher ends leases whose cgroup is empty, until its context ends: leases outlive it.
type watcher struct {
	ctx      context.Context // of one life
	t        *testing.T
	table    *lease.Table
	visitors *cgroup.Attachments
	watches  sync.WaitGroup
}

func (w *watcher) WatchLease(id string) {
	w.watches.Go(func() {
		err := w.visitors.WaitEmpty(w.ctx, id)
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

// guest is a process in a cgroup.
type guest struct {
	cgroup.Process
	cgroup string
	kill   func() error
	ended  chan struct{}
}

// lodge adopts who comes to it.
type lodge struct {
	*Adopter
	t      *testing.T
	dir    string
	books  *bookkeeper
	h      cgroup.Hierarchy
	kernel bool // the cgroups are the kernel's; else they are files that say what the test wants
	top    string
	gone   chan string // leases that are
	guests []*guest
	die    func() // ends this life
}

// inLodges runs a test with cgroups of plain files, and where that may be done with those of the kernel.
func inLodges(t *testing.T, test func(t *testing.T, x *lodge)) {
	t.Helper()
	t.Run("files", func(t *testing.T) { test(t, newLodge(t, cgroup.Hierarchy{Mount: t.TempDir()}, false)) })
	t.Run("kernel", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to make cgroups")
		}
		h, err := cgroup.FindHierarchy()
		if err != nil || !h.Writable() {
			t.Skipf("needs a cgroup v2 hierarchy that may be written (error: %v)", err)
		}
		test(t, newLodge(t, h, true))
	})
}

func newLodge(t *testing.T, h cgroup.Hierarchy, kernel bool) *lodge {
	t.Helper()
	x := &lodge{
		t: t, dir: t.TempDir(), books: &bookkeeper{units: map[string]string{}, memory: map[int]*uint64{}}, h: h, kernel: kernel, gone: make(chan string, 64),
		top: "/gpushare-lodge-" + strconv.Itoa(os.Getpid()) + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")),
	}
	x.write(filepath.Join(x.dir, "passwd"), "root:x:0:0::/:\nalice:x:2001:2001::/:\nbob:x:2002:2002::/:\ncarol:x:2003:2003::/:\n")
	x.write(filepath.Join(x.dir, "group"), "lab:x:3000:bob,root\nspeakers:x:3001:carol\n")
	x.newLife()
	t.Cleanup(func() {
		x.die()
		x.end(x.guests...)
		if kernel {
			if err := h.Remove(x.top); err != nil {
				t.Error(err)
			}
		}
	})
	return x
}

// newLife begins to adopt, and knows nothing but what is on disk.
func (x *lodge) newLife() {
	x.t.Helper()
	r, st := report.NewReporter(slog.New(slog.NewTextHandler(x.t.Output(), nil)), time.Now), state.NewState(nil, false)
	port, observer, visitors := cgroup.NewProcesses("a test"), &observe.Observer{}, cgroup.NewAttachments(cgroup.AttachmentsOptions{Mount: x.h.Mount})
	table := lease.New(lease.Config{Walls: visits{visitors}, Changed: func(l lease.Lease) {
		if l.State == lease.Ended {
			x.gone <- l.ID
		}
	}})
	who := server.NewIdentities(r, &loop.Group{}, "off")
	who.Spec = func() *api.Spec { return st.Desired().Spec }
	who.Names = &names.Directory{Passwd: filepath.Join(x.dir, "passwd"), Group: filepath.Join(x.dir, "group")}
	if err := who.Names.Refresh(x.t.Context(), nil, nil, true); err != nil {
		x.t.Fatal(err)
	}
	who.P.Store(&server.Roster{})
	ctx, stop := context.WithCancel(x.t.Context())
	w := &watcher{ctx: ctx, t: x.t, table: table, visitors: visitors}
	x.die = func() {
		stop()
		w.watches.Wait()
	}
	x.Adopter = &Adopter{
		Reporter: r, State: st, RunDir: store.RunDir(x.dir), Observer: observer, Port: port, Visitors: visitors, Table: table, Identities: who, Books: x.books,
		Hierarchy: func() (cgroup.Hierarchy, error) { return x.h, nil }, SampleInterval: func() time.Duration { return time.Hour }, Kick: func() {},
		Attribution: &attribution.Attribution{Reporter: r, State: st, Port: port, Follow: port, Visitors: visitors, Observer: observer, Table: table},
		Policy: &devicepolicy.Policy{
			Reporter: r, State: st, Port: port, Observer: observer, Table: table, Logins: devicepolicy.NewLoginGuard(cgroup.Hierarchy{}, "", x.dir, cgroup.Info{}),
		},
		Leases: w, Adoption: Adoption{Wake: loop.NewWake()},
	}
}

func (x *lodge) write(file, text string) {
	x.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		x.t.Fatal(err)
	}
}

// tell makes a cgroup of files say who is in it.
func (x *lodge) tell(cg, procs, populated string) {
	x.t.Helper()
	x.write(filepath.Join(x.h.Dir(cg), "cgroup.procs"), procs)
	x.write(filepath.Join(x.h.Dir(cg), "cgroup.events"), "populated "+populated+"\nfrozen 0\n")
}

// put starts a process in a cgroup of that name.
func (x *lodge) put(name string) *guest {
	x.t.Helper()
	g := &guest{cgroup: x.top + "/" + name, ended: make(chan struct{})}
	if err := os.MkdirAll(x.h.Dir(g.cgroup), 0o755); err != nil {
		x.t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	go func() {
		defer close(g.ended)
		_ = cmd.Wait() // It is killed, at the latest by the end.
	}()
	g.PID, g.kill = cmd.Process.Pid, cmd.Process.Kill
	x.guests = append(x.guests, g)
	var err error
	if g.Start, err = procfs.Start(g.PID); err != nil {
		x.t.Fatal(err)
	}
	if !x.kernel {
		x.tell(g.cgroup, strconv.Itoa(g.PID)+"\n", "1")
	} else if err := x.h.Place(g.Process, g.cgroup); err != nil {
		x.t.Fatal(err)
	}
	return g
}

// end ends guests. It is done again without harm.
func (x *lodge) end(guests ...*guest) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, g := range guests {
		if err := g.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			x.t.Error(err)
		}
	}
	for _, g := range guests {
		select {
		case <-g.ended:
		case <-ctx.Done():
			x.t.Errorf("process %d does not end", g.PID)
		}
	}
	for _, g := range guests {
		if !x.kernel {
			x.tell(g.cgroup, "", "0")
		} else if err := x.h.WaitEmpty(ctx, g.cgroup); err != nil {
			x.t.Error(err)
		}
	}
}

// lives tells whether a guest still runs where it was put.
func (x *lodge) lives(g *guest) bool {
	x.t.Helper()
	busy, err := x.h.Populated(g.cgroup)
	start, gone := procfs.Start(g.PID)
	if err != nil || !busy || gone != nil || start != g.Start {
		x.t.Logf("of process %d: populated %v, %v; %v", g.PID, busy, err, gone)
		return false
	}
	return true
}

// ownerOf is the lease of a guest.
func (x *lodge) ownerOf(g *guest) (string, bool) {
	if x.kernel {
		return x.Attribution.OwnerOf(g.PID)
	}
	return x.Attribution.Owners(1 << 10)(g.PID) // As so many it is asked of the hierarchy, not of /proc.
}

func (x *lodge) login(uid int, name string) *guest {
	x.t.Helper()
	g := x.put(systemd.UserSlice(uid))
	x.books.logins = append(x.books.logins, cgroup.Login{UID: uid, Name: name, Unit: systemd.UserSlice(uid), Cgroup: g.cgroup})
	return g
}

// logout ends the processes of a user and takes them from the books.
func (x *lodge) logout(uid int) {
	x.t.Helper()
	i := slices.IndexFunc(x.books.logins, func(l cgroup.Login) bool { return l.UID == uid })
	x.end(slices.DeleteFunc(slices.Clone(x.guests), func(g *guest) bool { return g.cgroup != x.books.logins[i].Cgroup })...)
	x.books.logins = slices.Delete(x.books.logins, i, i+1)
}

// apply puts tenants in force, each with its grants on the one GPU.
func (x *lodge) apply(tenants ...api.TenantSpec) {
	x.t.Helper()
	want := &state.Desired{
		Generation: x.State.Desired().Generation + 1, Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}, Tenants: tenants},
		Grants: map[state.GrantKey][]gpu.UUID{}, GPUs: map[gpu.UUID]*api.GPUSpec{"GPU-a": {Mode: api.ModeTimeslice}},
	}
	view := lease.View{Generation: want.Generation, GPUs: []lease.GPUView{{UUID: "GPU-a", Mode: api.ModeTimeslice, Capacity: 8 << 30}}}
	for i := range tenants {
		t := &tenants[i]
		for j := range t.Grants {
			want.Grants[state.GrantKey{Tenant: t.Name, Grant: t.Grants[j].Name}] = []gpu.UUID{"GPU-a"}
			view.Grants = append(view.Grants, lease.Grant{Tenant: t.Name, Spec: t.Grants[j]})
		}
	}
	x.State.SetDesired(want)
	x.Identities.RenewRoster()
	x.Table.Update(view)
}

func (x *lodge) look() {
	x.t.Helper()
	if err := x.AdoptAll(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
}

// held is what is adopted now: "alice vision/serve login".
func (x *lodge) held() []string {
	out := []string{}
	for _, l := range x.Table.Live() {
		who := l.User
		if l.Origin == lease.OriginUnit {
			who = l.Unit
		}
		out = append(out, who+" "+l.Terms.Tenant+"/"+l.Terms.Spec.Name+" "+l.Origin)
	}
	slices.Sort(out)
	return out
}

func (x *lodge) want(when string, held ...string) {
	x.t.Helper()
	if got := x.held(); !slices.Equal(got, held) {
		x.t.Errorf("%s: %q are adopted, want %q", when, got, held)
	}
}

// await waits until so many are adopted.
func (x *lodge) await(what string, live int) {
	x.t.Helper()
	late := time.After(10 * time.Second)
	for len(x.Table.Live()) != live {
		select {
		case <-x.gone:
		case <-late:
			x.t.Fatal("not within 10 s: " + what)
		}
	}
}

func (x *lodge) lacks(text string) bool {
	return slices.ContainsFunc(x.Conditions.List(), func(c api.Condition) bool { return c.Kind == "not-adopted" && strings.Contains(c.Message, text) })
}

func tenantOf(name string, m api.Members, grants ...string) api.TenantSpec {
	t := api.TenantSpec{Name: name, Members: m, Adopt: &api.AdoptSpec{Logins: grants[0]}}
	for _, g := range grants {
		t.Grants = append(t.Grants, api.GrantSpec{Name: g, Timeslice: &api.ShareSpec{Share: 20}})
	}
	return t
}
