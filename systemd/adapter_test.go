package systemd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// fakeMount is a directory of files that has what readers of a hierarchy's controllers need.
func fakeMount(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset cpu io memory pids\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func open(t *testing.T, opt Options) *Adapter {
	t.Helper()
	a, err := Open(within(t, 10*time.Second), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// openFake opens an adapter whose slices exist on the bus only.
func openFake(t *testing.T) (*Adapter, *fake) {
	t.Helper()
	f, address := startFake(t, nil)
	return open(t, Options{Address: address, Mount: fakeMount(t)}), f
}

// openReal opens an adapter whose fake service manager creates real cgroups.
func openReal(t *testing.T) (*Adapter, *fake) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create cgroups")
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		t.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	if !h.Writable() {
		t.Skipf("needs a cgroup v2 hierarchy that may be written, not %s", h.Mount)
	}
	prefix := "gpusharetest" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", ""))
	f, address := startFake(t, &h)
	// The library panics when it receives an array of descriptors, and the fake uses it: only a real service
	// manager can be given a process by descriptor.
	f.set(func() { f.version = "252.39-1~deb12u1" })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		top := "/" + prefix + ".slice"
		if err := errors.Join(h.Kill(ctx, top), h.Remove(top)); err != nil {
			t.Errorf("cannot clean up %s: %v", top, err)
		}
	})
	return open(t, Options{Address: address, Mount: h.Mount, Prefix: prefix}), f
}

func spawn(t *testing.T, name string, args ...string) cgroup.Process {
	t.Helper()
	return spawnReading(t, nil, name, args...)
}

// spawnReading is spawn with a standard input.
func spawnReading(t *testing.T, stdin *os.File, name string, args ...string) cgroup.Process {
	t.Helper()
	cmd := exec.Command(name, args...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		_ = cmd.Wait() // it is killed, which is the error
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-reaped
	})
	return cgroup.Process{PID: cmd.Process.Pid, Start: start}
}

func visionTrain() cgroup.Slice {
	return cgroup.Slice{
		Name: cgroup.SliceName{Tenant: "vision-lab", Grant: "train"},
		Limits: cgroup.Limits{
			CPUQuota: new(250.0), CPUWeight: new(uint64(200)), CPUs: "0-3,9", MemoryMax: new(uint64(64 << 30)),
			MemoryHigh: new(uint64(60 << 30)), SwapMax: new(uint64(0)), TasksMax: new(uint64(4096)), IOWeight: new(uint64(50)),
		},
		Closed: true,
		Devices: []cgroup.DeviceRule{
			{Type: 'c', Major: 195, Minor: 255, Access: "rw"}, {Type: 'c', Major: 195, Minor: 0, Access: "rw"},
		},
	}
}

const trainUnit = `gpushare-vision\x2dlab-train.slice`

func TestInfo(t *testing.T) {
	a, _ := openFake(t)
	want := cgroup.Info{
		Adapter: "systemd", Detail: "systemd 257.9-1~deb13u1", Slices: true, Driver: cgroup.DriverSystemd, Freeze: true, Devices: true,
		Limits: []string{"cpu", "memory", "tasks", "io", "cpuset"},
	}
	if d := cmp.Diff(want, a.Info()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestAbilities(t *testing.T) {
	a, _ := openFake(t)
	can := a.Abilities()
	for f, v := range reflect.ValueOf(can).Fields() {
		if v.IsNil() {
			t.Errorf("it has no %s", f.Name)
		}
	}
	for name, want := range map[string]bool{
		scopeUnit(a.prefix, "l-1"): true, programUnit(a.prefix, "l-1"): true, `gpushare\x2dmps.service`: true,
		"libpod-4711.scope": false, "gpushare.slice": false, "gpusharer-1.scope": false,
	} {
		if own := can.OwnScope(name); own != want {
			t.Errorf("%s is of gpushare: %v, want %v", name, own, want)
		}
	}
}

func TestOldSystemdIsRefused(t *testing.T) {
	f, address := startFake(t, nil)
	f.set(func() { f.version = "v239" })
	if _, err := Open(within(t, 10*time.Second), Options{Address: address, Mount: fakeMount(t)}); !errors.Is(err, cgroup.ErrNotSupported) {
		t.Errorf("systemd 239: %v", err)
	}
}

func TestSetSlice(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	s := visionTrain()

	wrote, err := a.SetSlice(ctx, s)
	if err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	// Limits are set before the start and are persistent; devices are set until the next boot.
	want := []string{
		"SetUnitProperties " + trainUnit + " persistent CPUQuotaPerSecUSec,CPUWeight,MemoryMax,MemoryHigh,MemorySwapMax,TasksMax,IOWeight,AllowedCPUs,DevicePolicy",
		"SetUnitProperties " + trainUnit + " runtime DeviceAllow,DeviceAllow",
		"StartUnit " + trainUnit + " replace",
	}
	if d := cmp.Diff(want, f.taken()); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
	if q := f.property(trainUnit, "CPUQuotaPerSecUSec"); q != uint64(2_500_000) {
		t.Errorf("quota %v", q)
	}
	if m := f.property(trainUnit, "AllowedCPUs"); !slices.Equal(m.([]byte), []byte{0x0f, 0x02}) {
		t.Errorf("CPU mask %v", m)
	}

	states, err := a.Slices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(states, func(st cgroup.SliceState) bool { return st.Name == s.Name })
	if i < 0 || len(states) != 3 {
		t.Fatalf("slices %+v", states)
	}
	if !states[i].Matches(a.Info().Expect(s)) {
		t.Errorf("read back %+v, expected %+v", states[i], a.Info().Expect(s))
	}
	if one, err := a.Slice(ctx, s.Name); err != nil || !reflect.DeepEqual(one, states[i]) {
		t.Errorf("read alone it is %+v, %v; among all %+v", one, err, states[i])
	}
	if _, err := a.Slice(ctx, cgroup.SliceName{Tenant: "missing"}); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("a missing slice: %v", err)
	}
	if states[i].Path != `/gpushare.slice/gpushare-vision\x2dlab.slice/`+trainUnit {
		t.Errorf("path %s", states[i].Path)
	}

	if wrote, err := a.SetSlice(ctx, s); err != nil || wrote {
		t.Errorf("the second time: wrote %v, %v", wrote, err)
	}
	if calls := f.taken(); len(calls) != 0 {
		t.Errorf("the second time: %v", calls)
	}
}

func TestSetSliceWritesOnlyWhatDiffers(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	s := visionTrain()
	set := func() []string {
		t.Helper()
		if _, err := a.SetSlice(ctx, s); err != nil {
			t.Fatal(err)
		}
		return f.taken()
	}
	set()

	s.Limits.MemoryMax, s.Limits.CPUQuota = new(uint64(32<<30)), nil
	want := []string{"SetUnitProperties " + trainUnit + " persistent CPUQuotaPerSecUSec,MemoryMax"}
	if d := cmp.Diff(want, set()); d != "" {
		t.Errorf("limits (-want +got):\n%s", d)
	}
	if q := f.property(trainUnit, "CPUQuotaPerSecUSec"); q != infinity {
		t.Errorf("a removed quota is %v", q)
	}

	// DeviceAllow appends: one device less must not leave the old one there.
	s.Devices = s.Devices[:1]
	want = []string{"SetUnitProperties " + trainUnit + " runtime DeviceAllow,DeviceAllow"}
	if d := cmp.Diff(want, set()); d != "" {
		t.Errorf("devices (-want +got):\n%s", d)
	}
	if got := f.property(trainUnit, "DeviceAllow"); cmp.Diff([][]any{{"/dev/char/195:255", "rw"}}, got) != "" {
		t.Errorf("entries %v", got)
	}
	s.Devices = nil
	set()
	if got := f.property(trainUnit, "DeviceAllow"); len(got.([][]any)) != 0 {
		t.Errorf("entries %v of a closed slice without devices", got)
	}

	// Opened again, the policy is kept: auto would leave the program in the kernel.
	s.Closed = false
	set()
	if p := f.property(trainUnit, "DevicePolicy"); p != "closed" {
		t.Errorf("policy %v", p)
	}
	if got := f.property(trainUnit, "DeviceAllow"); cmp.Diff([][]any{{"char-*", "rwm"}, {"block-*", "rwm"}}, got) != "" {
		t.Errorf("entries %v of an opened slice", got)
	}
	if calls := set(); len(calls) != 0 {
		t.Errorf("opening twice: %v", calls)
	}
	s.Closed, s.Devices = true, visionTrain().Devices
	set()
	states, err := a.Slices(ctx)
	if err != nil || !slices.ContainsFunc(states, func(st cgroup.SliceState) bool { return st.Matches(a.Info().Expect(s)) }) {
		t.Errorf("closed again: %+v, %v", states, err)
	}
}

func TestRemoveSlice(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	if _, err := a.SetSlice(ctx, visionTrain()); err != nil {
		t.Fatal(err)
	}
	f.taken()
	if err := a.RemoveSlice(ctx, visionTrain().Name); err != nil {
		t.Fatal(err)
	}
	want := []string{"StopUnit " + trainUnit + " replace", "RevertUnitFiles " + trainUnit}
	if d := cmp.Diff(want, f.taken()); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
	if err := a.RemoveSlice(ctx, visionTrain().Name); err != nil {
		t.Errorf("removing it again: %v", err)
	}
}

// The process of a scope exits while the service manager moves it. The process that gets its pid goes back to where it came
// from, and what it forked in the scope ends.
func TestScopeOfAProcessThatExits(t *testing.T) {
	if !procfstest.InPIDNamespace(t) {
		return
	}
	own, err := procfs.Cgroup(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []bool{true, false} {
		t.Run(map[bool]string{true: "before", false: "after"}[before], func(t *testing.T) {
			a, f := openReal(t)
			in, closeIn, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			p := spawnReading(t, in, "sh", "-c", "read x; exec 0</dev/null; sleep 60 & exit")
			others := make(chan cgroup.Process, 1) // The bus carries what happened before what, which the race detector does not see.
			exits := func() {
				if before {
					_ = unix.Kill(p.PID, unix.SIGKILL) // It runs.
				} else {
					closeIn.Close()
				}
				eventually(t, "it is reaped", func() bool { _, err := procfs.Read(p.PID); return err != nil })
				procfstest.AwaitOtherStart(p.Start)
				procfstest.NextPID(t, p.PID)
				others <- spawn(t, "sleep", "60")
			}
			f.set(func() {
				if before {
					f.beforeMove = exits
				} else {
					f.afterMove = exits
				}
			})
			s := cgroup.Scope{ID: "l-1", Slice: cgroup.SliceName{Tenant: "red"}, Process: p}
			if _, err := a.StartScope(within(t, 20*time.Second), s); !errors.Is(err, procfs.ErrNoProcess) {
				t.Errorf("the start returned %v", err)
			}
			closeIn.Close()
			var other cgroup.Process
			select {
			case other = <-others:
			default:
				t.Fatal("the process was not moved")
			}
			if at, err := procfs.Cgroup(other.PID); other.PID != p.PID || err != nil || at != own || !procfs.Alive(other.PID, other.Start) {
				t.Errorf("process %d, which has the pid %d, is in %s, %v; want %s", other.PID, p.PID, at, err, own)
			}
			if ps, err := f.h.Processes(path.Join(slicePath("gpushare-red.slice"), scopeUnit(a.prefix, s.ID))); err == nil && len(ps) > 0 {
				t.Errorf("the scope has %v", ps)
			}
		})
	}
}

func TestScope(t *testing.T) {
	a, f := openReal(t)
	ctx := within(t, 20*time.Second)
	p := spawn(t, "sleep", "60")
	s := cgroup.Scope{
		ID: "l-7", Slice: cgroup.SliceName{Tenant: "vision-lab", Grant: "train"}, Process: p, Closed: true,
		Devices: []cgroup.DeviceRule{{Type: 'c', Major: 195, Minor: 0, Access: "rw"}},
	}
	st, err := a.StartScope(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	unit := a.prefix + "-l-7.scope"
	wantPath := slicePath(a.prefix+`-vision\x2dlab-train.slice`) + "/" + unit + "/run"
	if st.Path != wantPath || st.Unit != unit {
		t.Errorf("state %+v, want path %s and unit %s", st, wantPath, unit)
	}
	for name, want := range map[string]any{
		"Delegate": true, "CollectMode": "inactive-or-failed", "TimeoutStopUSec": uint64(10_000_000), "DevicePolicy": "closed",
	} {
		if got := f.property(unit, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if f.property(unit, "User") != nil {
		t.Error("the scope has a User")
	}
	if at, err := procfs.Cgroup(p.PID); err != nil || at != st.Path {
		t.Errorf("the process is in %s, %v", at, err)
	}
	if id, ok := a.ScopeOf(p.PID); !ok || id != "l-7" {
		t.Errorf("scope %q, %v", id, ok)
	}
	if again, err := a.StartScope(ctx, s); err != nil || again != st {
		t.Errorf("started again: %+v, %v", again, err)
	}
	other := s
	other.Process = spawn(t, "sleep", "60")
	if _, err := a.StartScope(ctx, other); !errors.Is(err, cgroup.ErrInUse) {
		t.Errorf("another process under the same id: %v", err)
	}

	if err := a.Freeze(ctx, "l-7"); err != nil {
		t.Fatal(err)
	}
	if frozen, err := a.Frozen("l-7"); err != nil || !frozen {
		t.Errorf("frozen %v, %v", frozen, err)
	}
	if err := a.RemoveSlice(ctx, s.Slice); !errors.Is(err, cgroup.ErrInUse) {
		t.Errorf("removing a slice in use: %v", err)
	}

	// The next run of the daemon finds it, without a write.
	f.taken()
	next := open(t, Options{Address: a.bus.address, Mount: a.h.Mount, Prefix: a.prefix})
	if got, err := next.Recover(ctx, s); err != nil || got != st {
		t.Errorf("recovered %+v, %v", got, err)
	}
	if scopes, err := next.Scopes(ctx); err != nil || !slices.Equal(scopes, []cgroup.ScopeState{st}) {
		t.Errorf("scopes %+v, %v", scopes, err)
	}
	// The service manager stops it, and its process ignores SIGTERM.
	f.set(func() { f.unitLocked(st.Unit).active = "deactivating" })
	stopping := open(t, Options{Address: a.bus.address, Mount: a.h.Mount, Prefix: a.prefix})
	if got, err := stopping.Recover(ctx, s); err != nil || got != st {
		t.Errorf("recovered %+v, %v while it stops", got, err)
	}
	if scopes, err := stopping.Scopes(ctx); err != nil || !slices.Equal(scopes, []cgroup.ScopeState{st}) {
		t.Errorf("scopes %+v, %v while one stops", scopes, err)
	}
	if calls := f.taken(); len(calls) != 0 {
		t.Errorf("recovering wrote: %v", calls)
	}

	if err := next.KillScope(ctx, "l-7"); err != nil {
		t.Fatal(err)
	}
	if procfs.Alive(p.PID, p.Start) {
		t.Error("the process runs after its scope was killed")
	}
	if _, err := next.Recover(ctx, s); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("recovering a scope that ended: %v", err)
	}
	if err := a.WaitEmpty(ctx, "l-7"); err != nil {
		t.Errorf("waiting for the end: %v", err)
	}
}

// OOMPolicy=kill is set on scopes where the service manager knows it, and always on services.
func TestOOMPolicy(t *testing.T) {
	usual, f := openReal(t)
	for _, c := range []struct {
		version string
		scope   any
	}{{"249.11-0ubuntu3", nil}, {"252.39-1~deb12u1", nil}, {"253.5-1", "kill"}, {"255.4-1ubuntu8", "kill"}} {
		f.set(func() { f.version = c.version })
		a := open(t, Options{Address: usual.bus.address, Mount: usual.h.Mount, Prefix: usual.prefix})
		ctx := within(t, 20*time.Second)
		s := cgroup.Scope{ID: "l-1", Slice: cgroup.SliceName{Tenant: "red"}, Process: spawn(t, "sleep", "60")}
		if _, err := a.StartScope(ctx, s); err != nil {
			t.Fatalf("systemd %s: %v", c.version, err)
		}
		if got := f.property(scopeUnit(a.prefix, "l-1"), "OOMPolicy"); got != c.scope {
			t.Errorf("systemd %s: the scope's OOMPolicy is %v, want %v", c.version, got, c.scope)
		}
		local, remote := startConn(t)
		s.ID = "p-1"
		if _, _, err := a.StartProgram(ctx, s, script("exit 0"), remote); err != nil {
			t.Fatalf("systemd %s: %v", c.version, err)
		}
		remote.Close()
		if got := f.property(programUnit(a.prefix, "p-1"), "OOMPolicy"); got != "kill" {
			t.Errorf("systemd %s: the service's OOMPolicy is %v", c.version, got)
		}
		if err := a.KillScope(ctx, "l-1"); err != nil {
			t.Error(err)
		}
		local.Close()
		if err := a.WaitEmpty(ctx, "p-1"); err != nil {
			t.Error(err)
		}
		if _, err := a.Result(ctx, "p-1"); err != nil {
			t.Error(err)
		}
	}
}

// A scope of another program has a name like those of leases: that of Slurm begins with the name of the host, which may be that of the
// prefix. It is no lease, and its processes are not found as one.
func TestScopesOfOtherPrograms(t *testing.T) {
	a, f := openReal(t)
	ctx := within(t, 20*time.Second)
	unit := a.prefix + "-node1_slurmstepd.scope"
	cg := "/" + a.prefix + "other.slice/" + unit // Not in the slice of the prefix, as system.slice is not.
	if err := os.MkdirAll(a.h.Dir(cg), 0o755); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, "sleep", "60")
	if err := os.WriteFile(filepath.Join(a.h.Dir(cg), "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(a.h.Kill(context.Background(), path.Dir(cg)), a.h.Remove(path.Dir(cg))); err != nil {
			t.Error(err)
		}
	})
	f.set(func() {
		u := f.unitLocked(unit)
		u.active, u.sub, u.cgroup = "active", "running", cg
		u.props["ControlGroup"] = dbus.MakeVariant(cg)
	})
	if scopes, err := a.Scopes(ctx); err != nil || len(scopes) > 0 {
		t.Errorf("scopes %+v, %v", scopes, err)
	}
}

func TestScopeOfAnEndedProcess(t *testing.T) {
	a, f := openFake(t)
	p := spawn(t, "sleep", "60")
	_, err := a.StartScope(t.Context(), cgroup.Scope{ID: "l-1", Process: cgroup.Process{PID: p.PID, Start: p.Start + 1}})
	if !errors.Is(err, procfs.ErrNoProcess) {
		t.Errorf("another process of the same pid: %v", err)
	}
	if calls := f.taken(); len(calls) != 0 {
		t.Errorf("calls %v", calls)
	}
}

func TestFailedScopeIsResetAndStartedAgain(t *testing.T) {
	a, f := openReal(t)
	ctx := within(t, 20*time.Second)
	unit := a.prefix + "-l-1.scope"
	f.set(func() { f.unitLocked(unit).active = "failed" })
	st, err := a.StartScope(ctx, cgroup.Scope{ID: "l-1", Slice: cgroup.SliceName{Tenant: "t"}, Process: spawn(t, "sleep", "60")})
	if err != nil {
		t.Fatalf("%+v, %v", st, err)
	}
	want := []string{"StartTransientUnit " + unit + " fail", "ResetFailedUnit " + unit, "StartTransientUnit " + unit + " fail"}
	if d := cmp.Diff(want, f.taken()); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
}

func TestServices(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	s := Service{
		Name: "gpushare-mps-0", Description: "MPS of GPU 0", Argv: []string{"/usr/bin/nvidia-cuda-mps-control", "-f"},
		Env: map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_MPS_PIPE_DIRECTORY": "/run/x"}, WorkingDirectory: "/",
		Restart: "on-failure", RestartDelay: time.Second, UMask: new(uint32(0o77)), User: "nobody", OpenFiles: 16384,
		StartTimeout: 3 * time.Second,
	}
	if err := a.StartService(ctx, s); err != nil {
		t.Fatal(err)
	}
	unit := "gpushare-mps-0.service"
	for name, want := range map[string]any{
		"Slice": "gpushare.slice", "Type": "exec", "Restart": "on-failure", "RestartUSec": uint64(1_000_000), "UMask": uint32(0o77),
		"Environment": []string{"CUDA_MPS_PIPE_DIRECTORY=/run/x", "CUDA_VISIBLE_DEVICES=GPU-1"}, "WorkingDirectory": "/",
		"LimitNOFILE": uint64(16384), "LimitNOFILESoft": uint64(16384), "TimeoutStartUSec": uint64(3_000_000),
		"ExecStartEx": [][]any{{"/usr/bin/nvidia-cuda-mps-control", []string{"/usr/bin/nvidia-cuda-mps-control", "-f"}, []string{"no-env-expand"}}},
	} {
		if d := cmp.Diff(want, f.property(unit, name)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	st, err := a.ServiceState(ctx, s.Name)
	if err != nil || !st.Running() || st.MainPID != 4711 || st.Sub != "running" || st.Result != "success" {
		t.Errorf("state %+v, %v", st, err)
	}
	if err := a.StartService(ctx, s); !errors.Is(err, ErrExists) {
		t.Errorf("started twice: %v", err)
	}
	if err := a.StopService(ctx, s.Name, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ServiceState(ctx, s.Name); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("the state of a service that ended: %v", err)
	}
	if err := a.StopService(ctx, s.Name, time.Second); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
	if err := a.StartService(ctx, Service{Name: "x", Argv: []string{"relative"}}); err == nil {
		t.Error("a program without a path was started")
	}
}

func TestStopServiceKillsAfterTheTimeout(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	if err := a.StartService(ctx, Service{Name: "stuck", Argv: []string{"/bin/true"}}); err != nil {
		t.Fatal(err)
	}
	f.set(func() { f.hang = true })
	f.taken()
	if err := a.StopService(ctx, "stuck", 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"StopUnit stuck.service replace",
		"CancelJob 2",
		"KillUnit stuck.service all 9",
		"StopUnit stuck.service replace",
		"ResetFailedUnit stuck.service",
	}
	if d := cmp.Diff(want, f.taken()); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
}

func TestJobsThatFail(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	f.set(func() { f.result = "dependency" })
	err := a.StartService(ctx, Service{Name: "x", Argv: []string{"/bin/true"}})
	if !errors.Is(err, ErrJob) || !strings.Contains(err.Error(), `"dependency"`) {
		t.Errorf("a job with result dependency: %v", err)
	}
	f.set(func() { f.result, f.hang = "", true })
	err = a.StartService(within(t, 50*time.Millisecond), Service{Name: "y", Argv: []string{"/bin/true"}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a job without an end: %v", err)
	}
	// An abandoned job must not stop those that come after it.
	f.set(func() { f.hang = false })
	if err := a.StartService(ctx, Service{Name: "z", Argv: []string{"/bin/true"}}); err != nil {
		t.Errorf("after an abandoned job: %v", err)
	}
}

func TestReconnects(t *testing.T) {
	f, address := startFake(t, nil)
	p, through := startProxy(t, address)
	var verifies atomic.Int32
	a := open(t, Options{Address: through, Mount: fakeMount(t), OnReload: func() { verifies.Add(1) }})
	ctx := within(t, 20*time.Second)
	for round := range int32(3) {
		s := visionTrain()
		s.Limits.TasksMax = new(uint64(100 + round))
		if _, err := a.SetSlice(ctx, s); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		p.cut()
		eventually(t, "a verification after the lost connection", func() bool { return verifies.Load() == round+1 })
	}
	// A job that runs when the connection is lost is started again.
	f.set(func() { f.hang = true })
	done := make(chan error, 1)
	go func() { done <- a.StartService(ctx, Service{Name: "x", Argv: []string{"/bin/true"}}) }()
	eventually(t, "the job is under way", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Contains(f.calls, "StartTransientUnit x.service fail")
	})
	f.set(func() { f.hang = false; delete(f.units, "x.service") })
	p.cut()
	if err := <-done; err != nil {
		t.Errorf("a job whose connection was cut: %v", err)
	}
}

func TestReloadIsReported(t *testing.T) {
	f, address := startFake(t, nil)
	reported := make(chan struct{}, 10)
	open(t, Options{Address: address, Mount: fakeMount(t), OnReload: func() { reported <- struct{}{} }})
	for _, active := range []bool{true, false} {
		if err := f.conn.Emit(managerPath, managerIface+".Reloading", active); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-reported:
	case <-time.After(10 * time.Second):
		t.Fatal("the reload was not reported")
	}
	if len(reported) != 0 {
		t.Error("the begin of the reload was reported as well as its end")
	}
}

func TestUnreachable(t *testing.T) {
	_, err := Open(within(t, time.Second), Options{Address: busAddress(t.TempDir() + "/none"), Mount: fakeMount(t)})
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("no bus: %v", err)
	}
}

func TestSilentBus(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "mute")
	l, err := (&netListener{}).listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.stop)
	begin := time.Now()
	_, err = Open(within(t, 100*time.Millisecond), Options{Address: busAddress(socket), Mount: fakeMount(t)})
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("a silent bus: %v", err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("it gave up after %v", d)
	}
}
