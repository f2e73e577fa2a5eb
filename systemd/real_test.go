package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// openHost opens an adapter on the host's service manager, for tests that need a machine of their own.
func openHost(t *testing.T, onReload func()) *Adapter {
	t.Helper()
	if os.Getenv("GPUSHARE_TEST_SYSTEMD") == "" {
		t.Skip("needs a machine of its own with systemd, and GPUSHARE_TEST_SYSTEMD set")
	}
	a := open(t, Options{Prefix: "gpusharetest", OnReload: onReload})
	t.Logf("%+v", a.Info())
	return a
}

// kernelValue reads one file of a cgroup.
func kernelValue(t *testing.T, a *Adapter, cg, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(a.h.Dir(cg), file))
	if errors.Is(err, os.ErrNotExist) {
		return "" // the controller is off where nothing is limited
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
		// The context of the test has ended.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, n := range []cgroup.SliceName{s.Name, {Tenant: s.Name.Tenant}, {}} {
			if err := a.RemoveSlice(ctx, n); err != nil {
				t.Error(err)
			}
		}
		if left, err := filepath.Glob("/etc/systemd/system.control/gpusharetest-vision*"); err != nil || len(left) > 0 {
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
			if got := kernelValue(t, a, st.Path, file); got != want {
				t.Errorf("%s: %s is %q, want %q", when, file, got, want)
			}
		}
		if wrote, err := a.SetSlice(ctx, s); err != nil || wrote {
			t.Errorf("%s: setting the same wrote %v, %v", when, wrote, err)
		}
	}
	check("at the start")
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
		t.Errorf("with limits removed: read back %+v, expected %+v", st, a.Info().Expect(s))
	}
	for file, want := range map[string]string{"cpu.max": "max 100000", "memory.max": "max", "pids.max": "32"} {
		if got := kernelValue(t, a, st.Path, file); got != want && got != "" || got == "" && want == "32" {
			t.Errorf("with limits removed: %s is %q, want %q", file, got, want)
		}
	}
	s.Closed, s.Devices = false, nil
	for _, first := range []bool{true, false} {
		if wrote, err := a.SetSlice(ctx, s); err != nil || wrote != first {
			t.Errorf("opening: wrote %v, %v, want %v", wrote, err, first)
		}
	}
}

// rowEffect has a value for each row of the table that is no default, and where the kernel shows it. Device rules show by
// what can be opened.
func rowEffect() map[string]struct {
	value      any
	file, want string
} {
	type effect = struct {
		value      any
		file, want string
	}
	return map[string]effect{
		"CPUQuotaPerSecUSec": {uint64(500_000), "cpu.max", "50000 100000"},
		"CPUWeight":          {uint64(200), "cpu.weight", "200"},
		"MemoryMax":          {uint64(256 << 20), "memory.max", "268435456"},
		"MemoryHigh":         {uint64(240 << 20), "memory.high", "251658240"},
		"MemorySwapMax":      {uint64(1 << 20), "memory.swap.max", "1048576"},
		"TasksMax":           {uint64(64), "pids.max", "64"},
		"IOWeight":           {uint64(50), "io.weight", "default 50"},
		"AllowedCPUs":        {[]byte{1}, "cpuset.cpus", "0"},
		"AllowedMemoryNodes": {[]byte{1}, "cpuset.mems", "0"},
		"DevicePolicy":       {"closed", "", "denied"},
		"DeviceAllow":        {[]deviceAllow{{"/dev/char/195:0", "rw"}}, "", "through"},
	}
}

// opening reports what happens when a device number of the driver without a device is opened in a cgroup: "through" or
// "denied".
func opening(t *testing.T, a *Adapter, cg, node string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `echo $$ >"$1/cgroup.procs" && exec 3<>"$2"`, "sh", a.h.Dir(cg), node).CombinedOutput()
	switch {
	case err == nil:
		return "opened"
	case strings.Contains(string(out), "No such device or address"):
		return "through"
	case strings.Contains(string(out), "Operation not permitted"):
		return "denied"
	}
	return string(out)
}

const rowsUnit = "gpusharetest-rows.slice"

// checkRows compares the effect of every row on the unit with what it should be. A boot ends runtime properties.
func checkRows(t *testing.T, a *Adapter, when string, booted bool) {
	t.Helper()
	ctx := within(t, 30*time.Second)
	cg, err := a.controlGroup(ctx, rowsUnit, "Slice")
	if err != nil || cg == "" {
		t.Fatalf("%s: the slice is at %q, %v", when, cg, err)
	}
	// On a filesystem with device nodes: a temporary directory may be mounted nodev.
	dir, err := os.MkdirTemp("/dev", "gpusharetest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	node := filepath.Join(dir, "nvidia0")
	if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
		t.Fatal(err)
	}
	for _, p := range table() {
		e, ok := rowEffect()[p.name]
		if !ok {
			t.Fatalf("no effect is known of %s", p.name)
		}
		got, want := "", e.want
		switch {
		case p.name == "DevicePolicy":
			other := node + "9"
			if err := unix.Mknod(other, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 9))); err != nil && !errors.Is(err, unix.EEXIST) {
				t.Fatal(err)
			}
			got = opening(t, a, cg, other)
		case p.name == "DeviceAllow":
			got = opening(t, a, cg, node)
			if booted {
				want = "denied"
			}
		default:
			got = kernelValue(t, a, cg, e.file)
		}
		t.Logf("%-20s since %d, runtime %-5v %s: %s", p.name, p.since, p.lasts, when, got)
		if got != want {
			t.Errorf("%s: %s is %q, want %q", when, p.name, got, want)
		}
	}
}

// Every row of the table by its effect: from the start, over a reload, a reexec, and a stop and start; and its lifetime.
// TestHostTableAfterBoot checks the next boot.
func TestHostTable(t *testing.T) {
	a := openHost(t, nil)
	ctx := within(t, 120*time.Second)
	for _, p := range table() {
		err := a.bus.do(ctx, func(ctx context.Context, l *link) error {
			return l.units.SetUnitPropertiesContext(ctx, rowsUnit, bool(p.lasts), prop(p.name, rowEffect()[p.name].value))
		})
		if err != nil {
			t.Fatalf("cannot set %s: %v", p.name, err)
		}
		// One directory has it and no other: two lifetimes of one property are two values after a reload on 252.
		for i, root := range a.roots {
			matches, err := filepath.Glob(filepath.Join(root, rowsUnit+".d", "50-"+dropinName(p.name)+".conf"))
			if want := i == map[lifetime]int{persistent: 0, runtime: 1}[p.lasts]; err != nil || (len(matches) > 0) != want {
				t.Errorf("%s has its drop-in in %s: %v, want %v (%v)", p.name, root, matches, want, err)
			}
		}
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			t.Fatalf("systemctl %v: %v: %s", args, err, out)
		}
	}
	run("start", rowsUnit)
	checkRows(t, a, "from the start", false)
	run("daemon-reload")
	checkRows(t, a, "after a reload", false)
	run("daemon-reexec")
	checkRows(t, a, "after a reexec", false)
	run("stop", rowsUnit)
	run("start", rowsUnit)
	checkRows(t, a, "after a stop and a start", false)
}

// dropinName is the setting's name in the file, where it is another than on the bus.
func dropinName(property string) string {
	if property == "CPUQuotaPerSecUSec" {
		return "CPUQuota"
	}
	return property
}

// TestHostTableAfterBoot checks what a boot left of TestHostTable's slice, and removes it.
func TestHostTableAfterBoot(t *testing.T) {
	a := openHost(t, nil)
	if os.Getenv("GPUSHARE_TEST_SYSTEMD") != "rebooted" {
		t.Skip("needs a boot after TestHostTable, and GPUSHARE_TEST_SYSTEMD=rebooted to say so")
	}
	ctx := within(t, 60*time.Second)
	if out, err := exec.CommandContext(ctx, "systemctl", "start", rowsUnit).CombinedOutput(); err != nil {
		t.Fatalf("cannot start: %v: %s", err, out)
	}
	checkRows(t, a, "after a boot", true)
	for _, n := range []cgroup.SliceName{{Tenant: "rows"}, {}} {
		if err := a.RemoveSlice(ctx, n); err != nil {
			t.Error(err)
		}
	}
	for _, root := range a.roots {
		if left, err := filepath.Glob(filepath.Join(root, "gpusharetest*")); err != nil || len(left) > 0 {
			t.Errorf("drop-ins left: %v, %v", left, err)
		}
	}
}

// A limit that was overwritten in the cgroup is noticed, and set again.
func TestHostDriftIsCorrected(t *testing.T) {
	a := openHost(t, nil)
	ctx := within(t, 60*time.Second)
	s := cgroup.Slice{
		Name:   cgroup.SliceName{Tenant: "drift"},
		Limits: cgroup.Limits{MemoryMax: new(uint64(256 << 20)), TasksMax: new(uint64(64))},
	}
	if _, err := a.SetSlice(ctx, s); err != nil {
		t.Fatal(err)
	}
	st := read(t, a, s.Name)
	if err := os.WriteFile(filepath.Join(a.h.Dir(st.Path), "memory.max"), []byte("max"), 0); err != nil {
		t.Fatal(err)
	}
	if got := read(t, a, s.Name).Limits; got.MemoryMax != nil || got.TasksMax == nil {
		t.Errorf("shown after the write: %+v", got)
	}
	if wrote, err := a.SetSlice(ctx, s); err != nil || !wrote {
		t.Errorf("correcting wrote %v, %v", wrote, err)
	}
	// At once: reading back after a step must not return the old value.
	if got := kernelValue(t, a, st.Path, "memory.max"); got != "268435456" {
		t.Errorf("after correcting, memory.max is %s", got)
	}
	if wrote, err := a.SetSlice(ctx, s); err != nil || wrote {
		t.Errorf("correcting twice wrote %v, %v", wrote, err)
	}
	// What an administrator sets by systemctl is noticed without a reload.
	if out, err := exec.CommandContext(
		ctx, "systemctl", "set-property", "--runtime", "gpusharetest-drift.slice", "TasksMax=99",
	).CombinedOutput(); err != nil {
		t.Fatalf("set-property: %v: %s", err, out)
	}
	if got := read(t, a, s.Name).Limits.TasksMax; got == nil || *got != 99 {
		t.Errorf("tasks after a set-property: %v", got)
	}
	for _, n := range []cgroup.SliceName{s.Name, {}} {
		if err := a.RemoveSlice(ctx, n); err != nil {
			t.Error(err)
		}
	}
}

// What reading the slices costs in one converge on a node with many tenants: it is printed, and may be one query.
func TestHostManySlices(t *testing.T) {
	a := openHost(t, nil)
	ctx := within(t, 140*time.Second)
	tenants, grants := 6, 3 // 64 times 3 take minutes to create in an emulator, and cost the same for each
	root := a.roots[0]
	var units []string
	for i := range tenants {
		tenant := fmt.Sprintf("t%02d", i)
		units = append(units, sliceUnit(a.prefix, cgroup.SliceName{Tenant: tenant}))
		for j := range grants {
			units = append(units, sliceUnit(a.prefix, cgroup.SliceName{Tenant: tenant, Grant: fmt.Sprint("g", j)}))
		}
	}
	// By files and one reload, because it is the reading that is measured.
	for _, u := range units {
		dir := filepath.Join(root, u+".d")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		text := "[Slice]\nMemoryMax=1G\nTasksMax=100\nCPUWeight=50\nDevicePolicy=closed\nDeviceAllow=/dev/char/195:0 rw\n"
		if err := os.WriteFile(filepath.Join(dir, "50-test.conf"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Minute)
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_ = exec.Command("systemctl", append([]string{"stop"}, units...)...).Run()
		for _, u := range units {
			_ = os.RemoveAll(filepath.Join(root, u+".d"))
		}
		_ = exec.Command("systemctl", "daemon-reload").Run()
	})
	for _, args := range [][]string{{"daemon-reload"}, append([]string{"start"}, units...)} {
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			t.Fatalf("systemctl %s: %v: %s", args[0], err, out)
		}
	}
	measure := func(what string) time.Duration {
		t.Helper()
		own, remote := cpuTime(t, os.Getpid()), cpuTime(t, 1)
		all, err := a.Slices(ctx)
		if err != nil || len(all) < len(units) {
			t.Fatalf("%d slices, %v", len(all), err)
		}
		own, remote = cpuTime(t, os.Getpid())-own, cpuTime(t, 1)-remote
		t.Logf("NOTE %d slices, %s: %v of a processor here, %v in systemd", len(all), what, own, remote)
		if l := all[len(all)-1].Limits; l.MemoryMax == nil || *l.MemoryMax != 1<<30 {
			t.Errorf("limits %+v", l)
		}
		return own + remote
	}
	first := measure("each queried about")
	// The minimum of some: in an emulator, the first run costs a multiple.
	again := min(measure("nothing changed"), measure("nothing changed"), measure("nothing changed"))
	if again*3 > first {
		t.Errorf("reading what did not change takes %v of %v", again, first)
	}
}

// cpuTime is what a process has used of processors so far, to a hundredth of a second.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var ticks int
	for _, s := range f[11:13] {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
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
	if id, ok := a.ScopeOf(p.PID); !ok || id != "l-1" {
		t.Errorf("scope %q, %v", id, ok)
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
	if got, err := next.Recover(ctx, s); err != nil || got != st {
		t.Errorf("recovered %+v, %v", got, err)
	}
	if err := next.RemoveSlice(ctx, name); !errors.Is(err, cgroup.ErrInUse) {
		t.Errorf("removing a slice in use: %v", err)
	}
	began = time.Now()
	if err := next.KillScope(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	t.Logf("a frozen scope killed in %v", time.Since(began))
	// The same id again, at once: systemd may not have completed the end of the old one.
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
		t.Error("a missing program was started")
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
	var reported atomic.Int32
	openHost(t, func() { reported.Add(1) })
	if out, err := exec.CommandContext(t.Context(), "systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("daemon-reload: %v: %s", err, out)
	}
	eventually(t, "the reload is reported", func() bool { return reported.Load() > 0 })
}

func TestHostLifeAfterReexec(t *testing.T) {
	var reported atomic.Int32
	a := openHost(t, func() { reported.Add(1) })
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
	eventually(t, "the reexec is reported", func() bool { return reported.Load() > 0 })
	before := reported.Load()
	// The subscription must still exist.
	if out, err := exec.CommandContext(ctx, "systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("daemon-reload: %v: %s", err, out)
	}
	eventually(t, "a later reload is reported", func() bool { return reported.Load() > before })
}

// A scope whose slice runs out of memory ends as a whole and is reported as out of memory, on both adapters.
func TestHostOutOfMemory(t *testing.T) {
	a := openHost(t, nil)
	tree, err := cgroup.NewTree(cgroup.TreeOptions{Subtree: "gpusharetest"})
	if err != nil {
		t.Fatal(err)
	}
	name := cgroup.SliceName{Tenant: "lab", Grant: "dev"}
	t.Cleanup(func() {
		// The context of the test has ended.
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		for _, n := range []cgroup.SliceName{name, {Tenant: "lab"}, {}} {
			if err := a.RemoveSlice(ctx, n); err != nil {
				t.Error(err)
			}
		}
		if err := tree.Destroy(ctx); err != nil {
			t.Error(err)
		}
	})
	const greedy = "sleep 3000 & head -c 64000000 /dev/zero | tail & wait"
	for _, port := range []cgroup.Port{a, tree} {
		adapter := port.Info().Adapter
		ctx := within(t, 60*time.Second)
		limits := cgroup.Limits{MemoryMax: new(uint64(24 << 20)), SwapMax: new(uint64(0))}
		if _, err := port.SetSlice(ctx, cgroup.Slice{Name: name, Limits: limits}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			id, then string
			want     error
		}{{"l-1", greedy, cgroup.ErrOutOfMemory}, {"l-2", "exit 0", nil}, {"l-1", "exit 0", nil}} {
			local, remote := startConn(t)
			cmd := script(c.then)
			s := cgroup.Scope{ID: c.id, Slice: name, Process: spawnReading(t, remote, cmd[0], cmd[1:]...)}
			st, err := port.StartScope(ctx, s)
			if err != nil {
				t.Fatalf("%s: %v", adapter, err)
			}
			if port == cgroup.Port(a) {
				// Changing the unit does not undo it.
				if out, err := exec.CommandContext(
					ctx, "systemctl", "set-property", "--runtime", st.Unit, "MemoryMax=1G",
				).CombinedOutput(); err != nil {
					t.Errorf("systemctl set-property: %v: %s", err, out)
				}
				if got := kernelValue(t, a, st.Path, "memory.oom.group"); got != "1" {
					t.Errorf("memory.oom.group of %s is %q", st.Path, got)
				}
			}
			remote.Close()
			local.Close()
			if err := port.WaitEmpty(ctx, c.id); !errors.Is(err, c.want) {
				t.Errorf("%s: %s ended: %v, want %v", adapter, c.id, err, c.want)
			}
		}
	}
	ctx := within(t, 60*time.Second)
	local, remote := startConn(t)
	if _, _, err := a.StartProgram(ctx, cgroup.Scope{ID: "p1", Slice: name}, script(greedy), remote); err != nil {
		t.Fatal(err)
	}
	remote.Close()
	local.Close()
	if err := a.WaitEmpty(ctx, "p1"); !errors.Is(err, cgroup.ErrOutOfMemory) {
		t.Errorf("a program ended: %v", err)
	}
	if r, err := a.Result(ctx, "p1"); err != nil || r.Exited || r.Code != int(unix.SIGKILL) {
		t.Errorf("its result is %+v, %v", r, err)
	}
}
