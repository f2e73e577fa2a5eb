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
	"github.com/gpushare/gpushare/daemon/planner/plannertest"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/settings"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/systemd"
)

// fakeSessions replaces systemd and logind: it lists the logins. Their cgroups are real.
type fakeSessions struct{ logins []cgroup.Login }

func (b *fakeSessions) Logins(context.Context) ([]cgroup.Login, error) { return b.logins, nil }

func (*fakeSessions) UnitCgroup(context.Context, string) (string, error) {
	return "", cgroup.ErrNotFound
}

func (*fakeSessions) LoginMemory(context.Context, int) (*uint64, error) { return nil, nil }

func (*fakeSessions) SetLoginMemory(context.Context, int, *uint64) error { return nil }

// adoptionFixture is a daemon that adopts logins, on the host's own cgroup v2 hierarchy.
type adoptionFixture struct {
	*Daemon
	t          *testing.T
	sessions   *fakeSessions
	h          cgroup.Hierarchy
	top        string
	stopDaemon func() // ends this run of the daemon
	// startDaemon starts the next run, which has only the files.
	startDaemon func()
}

// noDriver is the driver of a host whose GPUs the test does not use.
type noDriver struct{ driver }

func (noDriver) Status() worker.Status { return worker.Status{} }

func (noDriver) Close() error { return nil }

func newAdoptionFixture(t *testing.T) *adoptionFixture {
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
	write(passwd, "alice:x:2001:2001::/:\n")
	write(group, "")
	b := &fakeSessions{}
	x := &adoptionFixture{t: t, sessions: b, h: h, top: "/gpushare-adoption-" + strconv.Itoa(os.Getpid()) + strings.ToLower(t.Name())}
	var ctx context.Context
	var stop context.CancelFunc
	x.startDaemon = func() {
		tree := cgroup.NewProcesses("a test")
		ctx, stop = context.WithCancel(t.Context())
		s := settings.Defaults()
		s.StateDir, s.RunDir, s.CDIDir, s.Getent = filepath.Join(dir, "state"), filepath.Join(dir, "run"), filepath.Join(dir, "cdi"), "off"
		d, err := build(ctx, s, slog.New(slog.NewTextHandler(t.Output(), nil)), &slog.LevelVar{}, environment{
			self: servertest.UidSelf,
			findHost: func(context.Context, settings.Settings, *slog.Logger, host.HostEvents) (*host.Host, error) {
				return &host.Host{
					Port: tree, Follow: tree, Attachments: cgroup.NewAttachments(cgroup.AttachmentsOptions{}), Sessions: b,
					LoginFilter: devicepolicy.NewLoginFilter(cgroup.Hierarchy{}, "", dir, cgroup.Info{}), Close: func() {},
				}, nil
			},
			openDriver: func(settings.Settings, *host.Host, *slog.Logger) (driver, error) { return noDriver{}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		x.Daemon = d
		ids := x.identities
		ids.Names = &names.Directory{Passwd: passwd, Group: group}
		if err := ids.Names.Refresh(t.Context(), nil, nil, true); err != nil {
			t.Fatal(err)
		}
		ids.Table.Store(&server.IdentityTable{})
		x.tasks.Begin(ctx)
	}
	x.startDaemon()
	x.stopDaemon = func() {
		stop()
		x.tasks.Wait()
		x.close()
	}
	t.Cleanup(func() {
		x.stopDaemon()
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

// login starts a process in the cgroup of a user's logins.
func (x *adoptionFixture) login(uid int, name string) {
	x.t.Helper()
	cg := x.top + "/" + systemd.UserSlice(uid)
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
	x.sessions.logins = append(x.sessions.logins, cgroup.Login{UID: uid, Name: name, Unit: systemd.UserSlice(uid), Cgroup: cg})
}

// apply puts tenants in force, each with one grant "serve" on the one GPU.
func (x *adoptionFixture) apply(tenants ...api.TenantSpec) {
	x.t.Helper()
	generation := uint64(0)
	if old := x.state.Desired(); old != nil {
		generation = old.Generation + 1
	}
	want, view := plannertest.OneGPU(generation, tenants...)
	x.state.SetDesired(want)
	x.identities.UpdateTable()
	x.table.Update(view)
}

func (x *adoptionFixture) adoptAll() {
	x.t.Helper()
	if err := x.adopter.AdoptAll(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
}

// want checks that exactly this login is adopted: "alice vision/serve login".
func (x *adoptionFixture) want(when, origin string) {
	x.t.Helper()
	var got []string
	for _, l := range x.table.Live() {
		got = append(got, l.User+" "+l.Terms.Tenant+"/"+l.Terms.Spec.Name+" "+l.Origin)
	}
	if !slices.Equal(got, []string{origin}) {
		x.t.Errorf("%s: %q are adopted, want %q", when, got, origin)
	}
}

func TestAdoptedIsFoundAgain(t *testing.T) {
	x := newAdoptionFixture(t)
	v := api.TenantSpec{
		Name: "vision", Members: api.Members{Users: []string{"alice"}}, Adopt: &api.AdoptSpec{Logins: "serve"},
		Grants: []api.GrantSpec{{Name: "serve", Timeslice: &api.ShareSpec{Share: 20}}},
	}
	x.apply(v)
	x.login(2001, "alice")
	x.adoptAll()
	before := x.table.Live()[0].ID
	saved, err := x.table.State()
	if err != nil {
		t.Fatal(err)
	}
	x.stopDaemon()
	// The next run has only the record and the cgroups.
	x.startDaemon()
	if err := x.table.Restore(saved); err != nil {
		t.Fatal(err)
	}
	for _, l := range x.table.Live() {
		if found, err := x.leases.Recover(t.Context(), &l); !found || err != nil {
			t.Errorf("%s is not found again: %v", l.ID, err)
		}
	}
	x.apply(v)
	x.adoptAll()
	x.want("found again", "alice vision/serve login")
	if now := x.table.Live()[0].ID; now != before {
		t.Errorf("%s became %s", before, now)
	}
}
