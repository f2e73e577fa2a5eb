package systemd

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/cgroup"
)

// fakeLogind lists logins on the bus of a fake service manager, and creates the users' slices there.
type fakeLogind struct {
	f *fake

	mu    sync.Mutex // guards users
	users []fakeUser
}

type fakeUser struct {
	UID  uint32
	Name string
	Path dbus.ObjectPath
}

func startLogind(t *testing.T, f *fake) *fakeLogind {
	t.Helper()
	l := &fakeLogind{f: f}
	if err := f.conn.Export(l, loginPath, loginIface); err != nil {
		t.Fatal(err)
	}
	if reply, err := f.conn.RequestName(loginName, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("cannot own %s: %v, %v", loginName, reply, err)
	}
	return l
}

// ListUsers is the D-Bus method.
func (l *fakeLogind) ListUsers() ([]fakeUser, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]fakeUser{}, l.users...), nil
}

func (l *fakeLogind) login(uid uint32, name string) {
	l.f.set(func() { l.f.startSliceLocked(UserSlice(int(uid))) })
	l.mu.Lock()
	defer l.mu.Unlock()
	u := fakeUser{uid, name, loginPath + "/user/_" + dbus.ObjectPath(UserSlice(int(uid))[5:9])}
	l.users = append(l.users, u)
	_ = l.f.conn.Emit(loginPath, loginIface+".UserNew", uid, u.Path)
}

func (l *fakeLogind) logout(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.users, func(u fakeUser) bool { return u.UID == uid })
	path := l.users[i].Path
	l.users = slices.Delete(l.users, i, i+1)
	l.f.set(func() { delete(l.f.units, UserSlice(int(uid))) })
	_ = l.f.conn.Emit(loginPath, loginIface+".UserRemoved", uid, path)
}

func TestLogins(t *testing.T) {
	f, address := startFake(t, nil)
	var reported atomic.Int32
	a := open(t, Options{Address: address, Mount: fakeMount(t), OnLogins: func() { reported.Add(1) }})
	ctx := within(t, 20*time.Second)
	if _, err := a.Logins(ctx); !errors.Is(err, ErrNoLogind) {
		t.Fatalf("without logind: %v", err)
	}
	l := startLogind(t, f)
	eventually(t, "that logind runs is reported", func() bool { return reported.Load() == 1 })
	if got, err := a.Logins(ctx); err != nil || len(got) != 0 {
		t.Fatalf("without logins: %v, %v", got, err)
	}
	l.login(2002, "bob")
	l.login(2001, "alice")
	eventually(t, "both logins are reported", func() bool { return reported.Load() == 3 })
	want := []cgroup.Login{
		{UID: 2001, Name: "alice", Unit: "user-2001.slice", Cgroup: "/user.slice/user-2001.slice"},
		{UID: 2002, Name: "bob", Unit: "user-2002.slice", Cgroup: "/user.slice/user-2002.slice"},
	}
	got, err := a.Logins(ctx)
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	l.logout(2002)
	eventually(t, "the logout is reported", func() bool { return reported.Load() == 4 })
	if got, err := a.Logins(ctx); err != nil || len(got) != 1 || got[0].Name != "alice" {
		t.Errorf("after bob's logout: %v, %v", got, err)
	}
}

func TestLoginsAreReportedOnANewConnection(t *testing.T) {
	f, address := startFake(t, nil)
	l := startLogind(t, f)
	p, through := startProxy(t, address)
	var logins, units atomic.Int32
	a := open(t, Options{
		Address: through, Mount: fakeMount(t), OnLogins: func() { logins.Add(1) },
		OnUnit: func(name string) {
			if name == "" {
				units.Add(1)
			}
		},
	})
	ctx := within(t, 20*time.Second)
	for round := range int32(3) {
		p.cut()
		eventually(t, "a reading after the lost connection", func() bool { return logins.Load() == 2*round+1 && units.Load() == round+1 })
		l.login(uint32(2001+round), "carol")
		eventually(t, "signals on the new connection", func() bool { return logins.Load() == 2*round+2 })
		if got, err := a.Logins(ctx); err != nil || len(got) != int(round)+1 {
			t.Errorf("round %d: %v, %v", round, got, err)
		}
	}
}

func TestStartedUnitsAreReported(t *testing.T) {
	_, address := startFake(t, nil)
	reported := make(chan string, 10)
	a := open(t, Options{Address: address, Mount: fakeMount(t), OnUnit: func(name string) { reported <- name }})
	ctx := within(t, 20*time.Second)
	if _, err := a.UnitCgroup(ctx, "hub.service"); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("a unit that does not run: %v", err)
	}
	if err := a.StartService(ctx, Service{Name: "hub", Argv: []string{"/bin/true"}}); err != nil {
		t.Fatal(err)
	}
	select {
	case name := <-reported:
		if name != "hub.service" {
			t.Errorf("reported: %q", name)
		}
	case <-ctx.Done():
		t.Fatal("the start was not reported")
	}
	if cg, err := a.UnitCgroup(ctx, "hub.service"); err != nil || cg != "/gpushare.slice/hub.service" {
		t.Errorf("it is in %q, %v", cg, err)
	}
	if _, err := a.UnitCgroup(ctx, "data.mount"); err == nil || errors.Is(err, cgroup.ErrNotFound) ||
		!strings.Contains(err.Error(), "only services") {
		t.Errorf("a mount: %v", err)
	}
}

func TestLoginMemory(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 20*time.Second)
	if got, err := a.LoginMemory(ctx, 2001); err != nil || got != nil {
		t.Errorf("without a limit: %v, %v", got, err)
	}
	limit := uint64(32 << 30)
	if err := a.SetLoginMemory(ctx, 2001, &limit); err != nil {
		t.Fatal(err)
	}
	if got, err := a.LoginMemory(ctx, 2001); err != nil || got == nil || *got != limit {
		t.Errorf("read back %v, %v", got, err)
	}
	if err := a.SetLoginMemory(ctx, 2001, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := a.LoginMemory(ctx, 2001); err != nil || got != nil {
		t.Errorf("removed: %v, %v", got, err)
	}
	want := []string{"SetUnitProperties user-2001.slice runtime MemoryMax", "SetUnitProperties user-2001.slice runtime MemoryMax"}
	if d := cmp.Diff(want, f.taken()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
