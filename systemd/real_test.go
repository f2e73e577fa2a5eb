package systemd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/procfs"
)

// openHost opens an adapter on the host's own service manager, for tests that only a machine of the tests' own may run.
func openHost(t *testing.T, onReload func()) *Adapter {
	t.Helper()
	if os.Getenv("GPUSHARE_TEST_SYSTEMD") == "" {
		t.Skip("needs a machine of its own with systemd, and GPUSHARE_TEST_SYSTEMD set to say so")
	}
	a := open(t, Options{Prefix: "gpusharetest", OnReload: onReload})
	t.Logf("%+v", a.Info())
	return a
}

// kernelSays reads one file of a cgroup.
func kernelSays(t *testing.T, a *Adapter, cg, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(a.h.Dir(cg), file))
	if errors.Is(err, os.ErrNotExist) {
		return "" // the controller is off where nobody limits anything
	}
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(b))
}

func hostSlice() cgroup.Slice {
	return cgroup.Slice{
		Name: cgroup.SliceName{Tenant: "vision-lab", Grant: "train"},
		Limits: cgroup.Limits{
			CPUQuota: new(150.0), CPUWeight: new(uint64(200)), CPUs: "0", MemoryMax: new(uint64(256 << 20)),
			MemoryHigh: new(uint64(240 << 20)), SwapMax: new(uint64(0)), TasksMax: new(uint64(64)), IOWeight: new(uint64(50)),
		},
		Closed:  true,
		Devices: []cgroup.DeviceRule{{Type: 'c', Major: 195, Minor: 0, Access: "rw"}, {Type: 'c', Major: 195, Minor: 255, Access: "rw"}},
	}
}

func TestHostSlice(t *testing.T) {
	a := openHost(t, nil)
	ctx := within(t, 60*time.Second)
	s := hostSlice()
	t.Cleanup(func() {
		// The tests' context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, n := range []cgroup.SliceName{s.Name, {Tenant: s.Name.Tenant}, {}} {
			if err := a.RemoveSlice(ctx, n); err != nil {
				t.Error(err)
			}
		}
		if left, err := filepath.Glob("/etc/systemd/system.control/gpusharetest*"); err != nil || len(left) > 0 {
			t.Errorf("drop-ins left: %v, %v", left, err)
		}
	})
	if wrote, err := a.SetSlice(ctx, s); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	find := func() cgroup.SliceState {
		t.Helper()
		all, err := a.Slices(ctx)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(st cgroup.SliceState) bool { return st.Name == s.Name })
		if i < 0 {
			t.Fatalf("no slice %s in %+v", s.Name, all)
		}
		return all[i]
	}
	check := func(when string) {
		t.Helper()
		st := find()
		if !st.Matches(a.Info().Expect(s)) {
			t.Errorf("%s: read back %+v, expected %+v", when, st, a.Info().Expect(s))
		}
		for file, want := range map[string]string{
			"cpu.max": "150000 100000", "cpu.weight": "200", "memory.max": "268435456", "memory.high": "251658240",
			"memory.swap.max": "0", "pids.max": "64", "io.weight": "default 50", "cpuset.cpus": "0",
		} {
			if got := kernelSays(t, a, st.Path, file); got != want {
				t.Errorf("%s: %s is %q, want %q", when, file, got, want)
			}
		}
		if wrote, err := a.SetSlice(ctx, s); err != nil || wrote {
			t.Errorf("%s: setting the same wrote %v, %v", when, wrote, err)
		}
	}
	check("at birth")
	if out, err := exec.CommandContext(ctx, "systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("daemon-reload: %v: %s", err, out)
	}
	check("after a reload")

	s.Limits = cgroup.Limits{TasksMax: new(uint64(32))}
	s.Devices = s.Devices[:1]
	if wrote, err := a.SetSlice(ctx, s); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	st := find()
	if !st.Matches(a.Info().Expect(s)) {
		t.Errorf("with limits taken away: read back %+v, expected %+v", st, a.Info().Expect(s))
	}
	for file, want := range map[string]string{"cpu.max": "max 100000", "memory.max": "max", "pids.max": "32"} {
		if got := kernelSays(t, a, st.Path, file); got != want && got != "" || got == "" && want == "32" {
			t.Errorf("with limits taken away: %s is %q, want %q", file, got, want)
		}
	}
	s.Closed, s.Devices = false, nil
	for _, first := range []bool{true, false} {
		if wrote, err := a.SetSlice(ctx, s); err != nil || wrote != first {
			t.Errorf("opening: wrote %v, %v, want %v", wrote, err, first)
		}
	}
}

func TestHostScope(t *testing.T) {
	a := openHost(t, nil)
	ctx := within(t, 60*time.Second)
	name := cgroup.SliceName{Tenant: "lab", Grant: "dev"}
	p := spawn(t, "sh", "-c", "while :; do :; done")
	s := cgroup.Scope{
		ID: "l-1", Slice: name, Process: p, Closed: true,
		Devices: []cgroup.DeviceRule{{Type: 'c', Major: 195, Minor: 0, Access: "rw"}},
	}
	began := time.Now()
	st, err := a.StartScope(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %v: %+v", time.Since(began), st)
	if a.pidOnly.Load() != (parseVersion(a.Info().Detail) < descriptorsSince) {
		t.Errorf("%s takes pids only: %v", a.Info().Detail, a.pidOnly.Load())
	}
	if at, err := procfs.Cgroup(p.PID); err != nil || at != st.Path {
		t.Errorf("the process is in %s, %v", at, err)
	}
	if id, ok := a.Owner(p.PID); !ok || id != "l-1" {
		t.Errorf("owner %q, %v", id, ok)
	}
	for range 10 {
		began := time.Now()
		if err := a.Freeze(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		frozen := time.Since(began)
		if err := a.Thaw(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		t.Logf("frozen in %v, thawed after %v", frozen, time.Since(began)-frozen)
	}
	if again, err := a.StartScope(ctx, s); err != nil || again != st {
		t.Errorf("started again: %+v, %v", again, err)
	}
	if err := a.Freeze(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	next := open(t, Options{Prefix: a.prefix})
	if got, err := next.Adopt(ctx, s); err != nil || got != st {
		t.Errorf("adopted %+v, %v", got, err)
	}
	if err := next.RemoveSlice(ctx, name); !errors.Is(err, cgroup.ErrInUse) {
		t.Errorf("removing a slice in use: %v", err)
	}
	began = time.Now()
	if err := next.KillScope(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	t.Logf("a frozen scope killed in %v", time.Since(began))
	// The same id again, at once: systemd may still be at the end of the old one.
	q := spawn(t, "sleep", "8")
	s.Process = q
	if _, err := a.StartScope(ctx, s); err != nil {
		t.Errorf("the same id again: %v", err)
	}
	if err := a.WaitEmpty(ctx, "l-1"); err != nil || procfs.Alive(q.PID, q.Start) {
		t.Errorf("waiting for the natural end: %v", err)
	}
	eventually(t, "no scope is left", func() bool {
		left, err := a.Scopes(ctx)
		return err == nil && len(left) == 0
	})
	for _, n := range []cgroup.SliceName{name, {Tenant: "lab"}} {
		if err := a.RemoveSlice(ctx, n); err != nil {
			t.Error(err)
		}
	}
}

func TestHostServices(t *testing.T) {
	a := openHost(t, nil)
	ctx := within(t, 60*time.Second)
	s := Service{
		Name: "gpusharetest-svc", Description: "a test", Argv: []string{"/bin/sh", "-c", `trap "" TERM; while :; do sleep 1; done`},
		Env: map[string]string{"A": "with space"}, WorkingDirectory: "/", Restart: "on-failure", RestartDelay: time.Second,
		UMask: new(uint32(0o77)), User: "nobody", Closed: true,
	}
	if err := a.StartService(ctx, s); err != nil {
		t.Fatal(err)
	}
	st, err := a.ServiceState(ctx, s.Name)
	if err != nil || !st.Running() {
		t.Fatalf("state %+v, %v", st, err)
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(st.MainPID) + "/environ")
	if err != nil || !strings.Contains(string(env), "A=with space\x00") {
		t.Errorf("environment %q, %v", env, err)
	}
	if err := a.StartService(ctx, s); !errors.Is(err, ErrExists) {
		t.Errorf("started twice: %v", err)
	}
	began := time.Now()
	if err := a.StopService(ctx, s.Name, time.Second); err != nil {
		t.Errorf("stopping what ignores SIGTERM: %v", err)
	}
	t.Logf("stopped in %v", time.Since(began))
	if _, err := a.ServiceState(ctx, s.Name); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("the state of a service that ended: %v", err)
	}
	if err := a.StopService(ctx, s.Name, time.Second); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
	if err := a.StartService(ctx, Service{Name: "gpusharetest-none", Argv: []string{"/no/such/program"}}); err == nil {
		t.Error("a program that is not there was started")
	}
	// The name is free again, although its first start failed.
	if err := a.StartService(ctx, Service{Name: "gpusharetest-none", Argv: []string{"/bin/sleep", "60"}}); err != nil {
		t.Error(err)
	}
	if err := a.StopService(ctx, "gpusharetest-none", 5*time.Second); err != nil {
		t.Error(err)
	}
}

func TestHostReload(t *testing.T) {
	var told atomic.Int32
	openHost(t, func() { told.Add(1) })
	if out, err := exec.CommandContext(t.Context(), "systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("daemon-reload: %v: %s", err, out)
	}
	eventually(t, "the reload is told", func() bool { return told.Load() > 0 })
}

func TestHostLifeAfterReexec(t *testing.T) {
	var told atomic.Int32
	a := openHost(t, func() { told.Add(1) })
	ctx := within(t, 60*time.Second)
	if out, err := exec.CommandContext(ctx, "systemctl", "daemon-reexec").CombinedOutput(); err != nil {
		t.Fatalf("daemon-reexec: %v: %s", err, out)
	}
	if err := a.StartService(ctx, Service{Name: "gpusharetest-re", Argv: []string{"/bin/sleep", "60"}}); err != nil {
		t.Fatal(err)
	}
	if err := a.StopService(ctx, "gpusharetest-re", 5*time.Second); err != nil {
		t.Error(err)
	}
	eventually(t, "the reexec is told", func() bool { return told.Load() > 0 })
	before := told.Load()
	// We must still be subscribed.
	if out, err := exec.CommandContext(ctx, "systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("daemon-reload: %v: %s", err, out)
	}
	eventually(t, "a later reload is told", func() bool { return told.Load() > before })
}
