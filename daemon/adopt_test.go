package daemon

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/host"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/systemd"
)

// bookkeeper stands for systemd and logind: it says who is there. The cgroups that it names are real.
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

// lodge is a daemon that adopts, on the host's own cgroup v2 hierarchy.
type lodge struct {
	*Daemon
	t     *testing.T
	books *bookkeeper
	h     cgroup.Hierarchy
	top   string
	die   func() // ends this life of the daemon
	// newLife begins another one, which knows nothing.
	newLife func()
}

// noDriver is that of a host whose GPUs nobody asks for.
type noDriver struct{ driver }

func (noDriver) Status() worker.Status { return worker.Status{} }

func (noDriver) Close() error { return nil }

func newLodge(t *testing.T) *lodge {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	h, err := cgroup.FindHierarchy()
	if err != nil || !h.Writable() {
		t.Skipf("needs a cgroup v2 hierarchy that may be written: %v", err)
	}
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	write := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(passwd, "alice:x:2001:2001::/:\nbob:x:2002:2002::/:\ncarol:x:2003:2003::/:\n")
	write(group, "lab:x:3000:bob\nspeakers:x:3001:carol\n")
	b := &bookkeeper{units: map[string]string{}, memory: map[int]*uint64{}}
	x := &lodge{t: t, books: b, h: h, top: "/gpushare-lodge-" + strconv.Itoa(os.Getpid()) + strings.ToLower(t.Name())}
	var ctx context.Context
	var stop context.CancelFunc
	x.newLife = func() {
		tree := cgroup.NewProcesses("a test")
		ctx, stop = context.WithCancel(t.Context())
		s := defaultSettings()
		s.StateDir, s.RunDir, s.CDIDir, s.Getent = filepath.Join(dir, "state"), dir, filepath.Join(dir, "cdi"), "off"
		d, err := build(ctx, s, slog.New(slog.NewTextHandler(t.Output(), nil)), &slog.LevelVar{}, outside{
			hold: func(context.Context, Settings, *slog.Logger, host.Heard) (*host.Host, error) {
				return &host.Host{
					Port: tree, Follow: tree, Visitors: cgroup.NewVisitors(cgroup.VisitorsOptions{}), Sessions: b,
					Logins: devicepolicy.NewLoginGuard(cgroup.Hierarchy{}, "", dir, cgroup.Info{}), Close: func() {},
				}, nil
			},
			drive: func(Settings, *host.Host, *slog.Logger) (driver, error) { return noDriver{}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		x.Daemon = d
		who := x.identities
		who.Names = &names.Directory{Passwd: passwd, Group: group}
		if err := who.Names.Refresh(t.Context(), nil, nil, true); err != nil {
			t.Fatal(err)
		}
		who.P.Store(&server.Roster{})
		x.tasks.Begin(ctx)
	}
	x.newLife()
	x.die = func() {
		stop()
		x.tasks.Wait()
		x.close()
	}
	t.Cleanup(func() {
		x.die()
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := h.Kill(end, x.top); err != nil {
			t.Error(err)
		}
		if err := h.Remove(x.top); err != nil {
			t.Error(err)
		}
	})
	return x
}

// put starts a process in a cgroup of that name and says where.
func (x *lodge) put(name string) (cg string, pid int) {
	x.t.Helper()
	cg = x.top + "/" + name
	if err := os.MkdirAll(x.h.Dir(cg), 0o755); err != nil {
		x.t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }() // It is killed with its cgroup, at the latest by the end.
	start, err := procfs.Start(cmd.Process.Pid)
	if err == nil {
		err = x.h.Place(cgroup.Process{PID: cmd.Process.Pid, Start: start}, cg)
	}
	if err != nil {
		x.t.Fatal(err)
	}
	return cg, cmd.Process.Pid
}

func (x *lodge) login(uid int, name string) (pid int) {
	cg, pid := x.put(systemd.UserSlice(uid))
	x.books.logins = append(x.books.logins, cgroup.Login{UID: uid, Name: name, Unit: systemd.UserSlice(uid), Cgroup: cg})
	return pid
}

// logout ends the processes of a user and takes them from the books.
func (x *lodge) logout(uid int) {
	x.t.Helper()
	i := slices.IndexFunc(x.books.logins, func(l cgroup.Login) bool { return l.UID == uid })
	if err := x.h.Kill(x.t.Context(), x.books.logins[i].Cgroup); err != nil {
		x.t.Fatal(err)
	}
	x.books.logins = slices.Delete(x.books.logins, i, i+1)
}

// apply puts tenants in force, each with one grant "serve" on the one GPU.
func (x *lodge) apply(tenants ...api.TenantSpec) {
	x.t.Helper()
	old := x.state.Desired()
	want := &state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}, Tenants: tenants}, Grants: map[state.GrantKey][]gpu.UUID{}, GPUs: map[gpu.UUID]*api.GPUSpec{"GPU-a": {Mode: api.ModeTimeslice}}}
	if old != nil {
		want.Generation = old.Generation + 1
	}
	view := lease.View{Generation: want.Generation, GPUs: []lease.GPUView{{UUID: "GPU-a", Mode: api.ModeTimeslice, Capacity: 8 << 30}}}
	for i := range tenants {
		t := &tenants[i]
		for j := range t.GPU {
			want.Grants[state.GrantKey{Tenant: t.Name, Grant: t.GPU[j].Name}] = []gpu.UUID{"GPU-a"}
			view.Grants = append(view.Grants, lease.Grant{Tenant: t.Name, Spec: t.GPU[j]})
		}
	}
	x.state.SetDesired(want)
	x.identities.RenewRoster()
	x.table.Update(view)
}

func (x *lodge) look() {
	x.t.Helper()
	if err := x.adopter.AdoptAll(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
}

// held is what is adopted now: "alice vision/serve login".
func (x *lodge) held() []string {
	out := []string{}
	for _, l := range x.table.Live() {
		who := l.User
		if l.Held == lease.HeldUnit {
			who = l.Unit
		}
		out = append(out, who+" "+l.Terms.Tenant+"/"+l.Terms.Spec.Name+" "+l.Held)
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

func (x *lodge) lacks(text string) bool {
	return slices.ContainsFunc(x.Conditions.List(), func(c api.Condition) bool { return c.Kind == "not-adopted" && strings.Contains(c.Message, text) })
}

func tenantOf(name string, m api.Members, grants ...string) api.TenantSpec {
	t := api.TenantSpec{Name: name, Members: m, Adopt: &api.AdoptSpec{Logins: grants[0]}}
	for _, g := range grants {
		t.GPU = append(t.GPU, api.GrantSpec{Name: g, Timeslice: &api.ShareSpec{Share: 20}})
	}
	return t
}

func TestAdoptsLoginsAndUnits(t *testing.T) {
	x := newLodge(t)
	vision := tenantOf("vision", api.Members{Users: []string{"alice"}, Groups: []string{"lab"}}, "serve", "dev")
	vision.Adopt.Units = map[string]string{"hub.service": "dev"}
	x.apply(vision)
	x.look()
	x.want("nobody is there")
	alice := x.login(2001, "alice")
	x.login(2002, "bob")   // by his group
	x.login(2003, "carol") // nobody's
	x.books.logins = append(x.books.logins, cgroup.Login{UID: 0, Name: "root", Unit: "user-0.slice", Cgroup: x.top})
	x.books.units["hub.service"], _ = x.put("hub.service")
	x.look()
	all := []string{"alice vision/serve login", "bob vision/serve login", "hub.service vision/dev unit"}
	x.want("all came", all...)
	if id, ok := x.attribution.OwnerOf(alice); !ok || !strings.HasPrefix(id, "vision-serve") {
		t.Errorf("alice's process is of %q", id)
	}
	x.look()
	x.want("at the second look", all...)

	x.logout(2001)
	waitUntil(t, "the lease ends with the login", func() bool { return len(x.table.Live()) == 2 })
	x.look()
	x.want("alice left", all[1:]...)

	vision.Adopt.Units = nil
	x.apply(vision)
	x.look()
	x.want("the unit is not adopted any more", all[1])
	if busy, err := x.h.Populated(x.books.units["hub.service"]); err != nil || !busy {
		t.Errorf("the unit's processes were ended: %v, %v", busy, err)
	}
	x.apply(tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve"))
	x.look()
	x.want("the tenant has another name", "bob speech/serve login")
	x.apply(tenantOf("speech", api.Members{Users: []string{"alice"}}, "serve"))
	x.look()
	x.want("bob is no member any more")
	x.apply(tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve"))
	x.look()
	x.want("he is again", "bob speech/serve login")
	nobodys := tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve")
	nobodys.Adopt = nil
	x.apply(nobodys)
	x.look()
	x.want("nobody adopts anybody")
	if busy, err := x.h.Populated(x.top + "/user-2002.slice"); err != nil || !busy {
		t.Errorf("bob's processes were ended: %v, %v", busy, err)
	}
}

func TestOneUserOneTenant(t *testing.T) {
	x := newLodge(t)
	a := tenantOf("vision", api.Members{Users: []string{"bob"}}, "serve")
	b := tenantOf("speech", api.Members{Groups: []string{"lab"}}, "serve")
	x.apply(a, b)
	x.login(2002, "bob")
	x.look()
	x.want("both want him")
	if !x.lacks("the logins of bob are adopted by vision and speech") {
		t.Errorf("it is not said: %+v", x.Conditions.List())
	}
	b.Adopt = nil
	x.apply(a, b)
	x.look()
	x.want("one wants him", "bob vision/serve login")
	if x.lacks("bob") {
		t.Errorf("it is still said: %+v", x.Conditions.List())
	}
}

func TestNoPlace(t *testing.T) {
	x := newLodge(t)
	v := tenantOf("vision", api.Members{Users: []string{"alice", "bob"}}, "serve")
	v.GPU[0].Leases = new(1)
	x.apply(v)
	x.login(2001, "alice")
	x.login(2002, "bob")
	x.look()
	x.want("one place", "alice vision/serve login")
	if !x.lacks("the logins of bob have no lease of serve") {
		t.Errorf("it is not said: %+v", x.Conditions.List())
	}
	x.logout(2001)
	waitUntil(t, "the place comes free", func() bool { return len(x.table.Live()) == 0 })
	x.look()
	x.want("the place came free", "bob vision/serve login")
	if x.lacks("bob") {
		t.Errorf("it is still said: %+v", x.Conditions.List())
	}
}

func TestWhoeverEndedItMeantIt(t *testing.T) {
	x := newLodge(t)
	v := tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve")
	x.apply(v)
	pid := x.login(2001, "alice")
	x.look()
	id, _ := x.attribution.OwnerOf(pid)
	if err := x.table.Ended(t.Context(), id, "stopped by root"); err != nil {
		t.Fatal(err)
	}
	x.look()
	x.want("it was ended by name")
	x.apply(v)
	x.look()
	x.want("after the next apply", "alice vision/serve login")
}

func TestAdoptedIsFoundAgain(t *testing.T) {
	x := newLodge(t)
	v := tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve")
	x.apply(v)
	x.login(2001, "alice")
	x.look()
	before := x.table.Live()[0].ID
	saved, err := x.table.State()
	if err != nil {
		t.Fatal(err)
	}
	x.die()
	// Another life: what it has is the record and the cgroups.
	x.newLife()
	if err := x.table.Restore(saved); err != nil {
		t.Fatal(err)
	}
	for _, l := range x.table.Live() {
		if found, err := x.leases.Adopt(t.Context(), &l); !found || err != nil {
			t.Errorf("%s is not found again: %v", l.ID, err)
		}
	}
	x.apply(v)
	x.look()
	x.want("found again", "alice vision/serve login")
	if now := x.table.Live()[0].ID; now != before {
		t.Errorf("%s became %s", before, now)
	}
}

func TestPerLogin(t *testing.T) {
	x := newLodge(t)
	v := tenantOf("vision", api.Members{Users: []string{"alice"}, Groups: []string{"lab"}}, "serve")
	v.Adopt = nil
	x.login(2001, "alice")
	x.login(2003, "carol")
	had := uint64(64 << 30)
	x.books.memory[2001] = &had
	memory := func(uid int) uint64 {
		if m := x.books.memory[uid]; m != nil {
			return *m
		}
		return 0
	}
	limit := api.Bytes(32 << 30)
	v.PerLogin = &api.MemorySpec{Memory: &limit}
	x.apply(v)
	x.look()
	x.look()
	if memory(2001) != 32<<30 || memory(2003) != 0 || x.books.sets != 1 {
		t.Errorf("alice has %d, carol %d, after %d writes", memory(2001), memory(2003), x.books.sets)
	}
	x.login(2002, "bob")
	x.look()
	if memory(2002) != 32<<30 {
		t.Errorf("bob, who came by his group, has %d", memory(2002))
	}
	// Somebody else changes it: it is mended.
	x.books.memory[2002] = &had
	x.look()
	if memory(2002) != 32<<30 {
		t.Errorf("a changed limit stays %d", memory(2002))
	}
	limit = 16 << 30
	x.apply(v)
	x.look()
	if memory(2001) != 16<<30 || memory(2002) != 16<<30 {
		t.Errorf("with another limit alice has %d and bob %d", memory(2001), memory(2002))
	}
	x.logout(2002)
	// Another life, and the spec drops it while he is away.
	x.die()
	x.newLife()
	v.PerLogin = nil
	x.apply(v)
	x.look()
	if memory(2001) != had || x.books.memory[2002] != nil {
		t.Errorf("after the spec dropped it alice has %d and bob %d", memory(2001), memory(2002))
	}
	sets := x.books.sets
	x.look()
	if x.books.sets != sets {
		t.Error("a second look wrote again")
	}
}

// waitUntil polls what there is no event for.
func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("not within 10 s: " + what)
		}
	}
}
