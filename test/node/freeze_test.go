package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// failOpen is the longest time that a process stays frozen without the daemon.
const failOpen = 2 * time.Second

// needsFreezer skips a test where nothing can be frozen.
func needsFreezer(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("freezing processes needs root")
	}
	unified(t)
}

// busy starts a lease that keeps the GPU busy.
func busy(t *testing.T, n *harness.Node, tenant string) (id, cgroup string) {
	t.Helper()
	_, id = begin(t, n, tenant, "part", n.Burn("--memory", "64MiB", "--kernel", "5ms", "--queue", "10")...)
	s := awaitStatus(
		t, n, "the lease does not use the GPU", func(s *api.Status) bool { l := findLease(s, id); return l != nil && l.Processes > 0 },
	)
	return id, filepath.Join(unified(t), findLease(s, id).Isolation.Cgroup)
}

func findLease(s *api.Status, id string) *api.Lease {
	for i := range s.Leases {
		if s.Leases[i].ID == id {
			return &s.Leases[i]
		}
	}
	return nil
}

// freezes follows when cgroups are frozen, as the kernel says.
type freezes struct {
	stop  func()
	mu    sync.Mutex // guards the fields below
	since map[string]time.Time
	until map[string]time.Time // the last time at which it was seen frozen
	count map[string]int
	most  map[string]time.Duration // the longest freeze
	ran   map[string]string        // for how long its processes had run when it began
}

// followFreezes follows cgroups by name until the test ends.
func followFreezes(t *testing.T, cgroups map[string]string) *freezes {
	t.Helper()
	f := &freezes{
		since: map[string]time.Time{},
		until: map[string]time.Time{},
		count: map[string]int{},
		most:  map[string]time.Duration{},
		ran:   map[string]string{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			for name, dir := range cgroups {
				b, _ := os.ReadFile(filepath.Join(dir, "cgroup.events")) // An ended lease is not frozen.
				usage, _ := os.ReadFile(filepath.Join(dir, "cpu.stat"))
				ran, _, _ := strings.Cut(string(usage), "\n") // usage_usec
				f.saw(name, strings.Contains(string(b), "frozen 1"), ran, time.Now())
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	f.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(f.stop)
	return f
}

func (f *freezes) saw(name string, frozen bool, ran string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !frozen {
		delete(f.since, name)
		return
	}
	// A look that is late may have missed a break. Processes that had one have used a processor in it.
	if _, ok := f.since[name]; !ok || ran != f.ran[name] {
		f.since[name], f.ran[name] = now, ran
		f.count[name]++
	}
	f.until[name] = now
	f.most[name] = max(f.most[name], now.Sub(f.since[name]))
}

// now returns the names that are frozen.
func (f *freezes) now() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.since {
		names = append(names, name)
	}
	return names
}

// last returns the last time at which one was frozen.
func (f *freezes) last() (last time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, at := range f.until {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// counted returns how often each was frozen.
func (f *freezes) counted(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count[name]
}

// longest returns the longest freeze of any.
func (f *freezes) longest() (most time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.most {
		most = max(most, d)
	}
	return most
}

// taking waits until each was frozen again this often.
func (f *freezes) taking(t *testing.T, names ...string) {
	t.Helper()
	before := map[string]int{}
	for _, name := range names {
		before[name] = f.counted(name)
	}
	err := harness.Await(soon(t), 5*time.Millisecond, "the leases do not take turns", func() (bool, error) {
		for _, name := range names {
			if f.counted(name) < before[name]+2 {
				return false, fmt.Errorf("%s was frozen %d times", name, f.counted(name)-before[name])
			}
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// An administrator's freeze is not undone by the time slices, and time slices not by an administrator's thaw.
func TestTenantFreeze(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsFreezer(t)
	n := start(t, quick)
	apply(t, n, small)
	red, redDir := busy(t, n, "red")
	blue, blueDir := busy(t, n, "blue")
	f := followFreezes(t, map[string]string{"red": redDir, "blue": blueDir})
	f.taking(t, "red", "blue")
	if r := n.CLI(soon(t), "tenant", "freeze", "green"); r.Code != 1 || !strings.Contains(r.Err, `there is no tenant "green"`) {
		t.Errorf("an unknown tenant: %d %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "tenant", "freeze", "red"); r.Code != 0 || !strings.Contains(r.Out, red+" is frozen") {
		t.Fatalf("freeze: %d %s%s", r.Code, r.Out, r.Err)
	}
	onlyRed := func(where string) {
		t.Helper()
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
			<-time.After(5 * time.Millisecond) // Several rounds pass.
			if got := f.now(); len(got) != 1 || got[0] != "red" {
				// The last freeze of blue may still be there at the start.
				if time.Until(end) < 2500*time.Millisecond {
					t.Fatalf("%s: frozen are %v, want only red", where, got)
				}
			}
		}
	}
	onlyRed("after the freeze")
	s := status(t, n)
	if l := findLease(s, red); len(l.FrozenFor) != 1 || l.FrozenFor[0] != "an administrator" {
		t.Errorf("the lease is frozen for %q", l.FrozenFor)
	}
	for _, tenant := range s.Tenants {
		if (tenant.Frozen != nil) != (tenant.Name == "red") {
			t.Errorf("tenant %s: frozen %+v", tenant.Name, tenant.Frozen)
		}
	}
	if r := n.CLI(soon(t), "run", "-t", "red", "--grant", "part", "--", "true"); r.Code == 0 ||
		!strings.Contains(r.Err, "froze tenant red") {
		t.Errorf("a new lease of a frozen tenant: %d %s", r.Code, r.Err)
	}

	// Without the daemon it runs; the next daemon freezes it again.
	killed := time.Now()
	n.KillDaemon()
	thawed(t, n)
	if d := time.Since(killed); d > failOpen {
		t.Errorf("it was thawed %v after the daemon was killed", d)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	err := harness.Await(soon(t), 5*time.Millisecond, "red is not frozen again", func() (bool, error) {
		if got := f.now(); len(got) != 1 || got[0] != "red" {
			return false, fmt.Errorf("frozen: %v", got)
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	onlyRed("after a restart")
	if r := n.CLI(soon(t), "tenant", "thaw", "red"); r.Code != 0 || !strings.Contains(r.Out, "tenant red is not frozen") {
		t.Fatalf("thaw: %d %s%s", r.Code, r.Out, r.Err)
	}
	f.taking(t, "red", "blue")
	if l := findLease(status(t, n), blue); len(l.FrozenFor) > 0 {
		t.Errorf("blue is frozen for %q", l.FrozenFor)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("a new lease after the thaw: %d %s", r.Code, r.Err)
	}
	// A frozen lease can be stopped: SIGTERM reaches it.
	if r := n.CLI(soon(t), "tenant", "freeze", "blue"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	began := time.Now()
	if r := n.CLI(soon(t), "lease", "stop", blue); r.Code != 0 {
		t.Errorf("stop: %d %s", r.Code, r.Err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("a frozen lease needed %v to stop: SIGTERM did not reach it", d)
	}
}

// No process stays frozen, whatever is killed or stopped: neither for time slices nor for an administrator.
func TestFailOpen(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsFreezer(t)
	n := start(t, quick)
	apply(
		t,
		n,
		strings.Replace(
			small, "  - name: blue\n",
			"  - name: green\n    grants:\n      - {name: part, timeslice: {share: 10%, gpu_memory: 1GiB}}\n  - name: blue\n", 1,
		),
	)
	dirs := map[string]string{}
	for _, tenant := range []string{"red", "blue", "green"} {
		_, dirs[tenant] = busy(t, n, tenant)
	}
	if r := n.CLI(soon(t), "tenant", "freeze", "green"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	f := followFreezes(t, dirs)
	for _, c := range []struct {
		name string
		pid  func() int
		sig  syscall.Signal
		// after makes the node work again
		after func(pid int) error
	}{
		{"the daemon is stopped", n.DaemonPID, syscall.SIGSTOP, func(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) }},
		{"gpushare-thaw is stopped", n.ThawPID, syscall.SIGSTOP, func(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) }},
		{"the daemon is killed", n.DaemonPID, syscall.SIGKILL, func(int) error { n.KillDaemon(); return n.StartDaemon(soon(t)) }},
		{"gpushare-thaw is killed", n.ThawPID, syscall.SIGKILL, func(int) error { n.KillDaemon(); return n.StartDaemon(soon(t)) }},
	} {
		f.taking(t, "red", "blue")
		err := harness.Await(soon(t), time.Millisecond, "no time slice", func() (bool, error) {
			if got := f.now(); len(got) < 2 {
				return false, fmt.Errorf("frozen: %v", got)
			}
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		pid := c.pid()
		at := time.Now()
		if err := syscall.Kill(pid, c.sig); err != nil {
			t.Fatal(err)
		}
		for time.Since(at) < failOpen+time.Second { // What happens in this time is measured.
			<-time.After(10 * time.Millisecond)
		}
		if d := f.last().Sub(at); d > failOpen {
			t.Errorf("%s: %v are frozen, or were after %v", c.name, f.now(), d)
		} else {
			t.Logf("%s: the last freeze ended after %v", c.name, d)
		}
		if err := c.after(pid); err != nil {
			t.Fatal(err)
		}
	}
	f.taking(t, "red", "blue")
}

// The daemon, gpushare-thaw and the worker are killed and stopped at each point of a freeze and a thaw, of a lease in a cgroup of gpushare
// and of the job of an engine. No process stays frozen, and every lease runs on.
func TestFailOpenAtEveryPoint(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsFreezer(t)
	k := 0
	for _, point := range []string{"freezer.before-freeze", "freezer.after-freeze", "slices.charged", "freezer.before-thaw", "freezer.after-thaw"} {
		var run []fault
		for _, f := range faultsWhileFrozen {
			if k++; enumeration.Runs(k-1, 7) {
				run = append(run, f)
			}
		}
		if len(run) > 0 {
			t.Run(point, func(t *testing.T) {
				t.Parallel()
				checkFailOpen(t, point, run)
			})
		}
	}
}

// fault is what happens to one program of a node while the daemon is at a fault point.
type fault struct {
	name   string
	action string                                  // of the daemon at the point
	pid    func(t *testing.T, n *harness.Node) int // of another program that gets the signal while the daemon is stopped there; nil: none
	sig    syscall.Signal
}

var faultsWhileFrozen = []fault{
	{name: "the daemon is killed", action: "kill"},
	{name: "the daemon is stopped", action: "stop"},
	{"gpushare-thaw is killed", "stop", thawPID, syscall.SIGKILL},
	{"gpushare-thaw is stopped", "stop", thawPID, syscall.SIGSTOP},
	{"the worker is killed", "stop", workerPID, syscall.SIGKILL},
	{"the worker is stopped", "stop", workerPID, syscall.SIGSTOP},
}

func thawPID(_ *testing.T, n *harness.Node) int { return n.ThawPID() }

func workerPID(t *testing.T, n *harness.Node) int {
	t.Helper()
	return workerOf(t, n.DaemonPID())
}

// checkFailOpen checks on a node of its own that no lease stays frozen, whatever happens at the point.
func checkFailOpen(t *testing.T, point string, faults []fault) {
	t.Helper()
	n := newNode(t, quick)
	n.Bin = buildWithFaults(t)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, freezesJobs(small, "slurm"))
	dirs := map[string]string{}
	_, dirs["red"] = busy(t, n, "red")
	dirs["blue"] = busyJob(t, n, "blue").task
	f := followFreezes(t, dirs)
	for _, c := range faults {
		checkFaultWhileFrozen(t, n, f, point, c)
	}
	n.KillDaemon()
	n.Env = nil
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	f.taking(t, "red", "blue")
	if s := status(t, n); len(s.Leases) != 2 {
		t.Errorf("%d leases, want 2", len(s.Leases))
	}
}

// checkFaultWhileFrozen restarts the daemon and has the fault happen at the point.
func checkFaultWhileFrozen(t *testing.T, n *harness.Node, f *freezes, point string, c fault) {
	t.Helper()
	where := point + ": " + c.name
	stamp := filepath.Join(t.TempDir(), "stamp")
	n.KillDaemon()
	n.Env = []string{"GPUSHARE_FAULT=" + point + ":" + c.action + "@6", "GPUSHARE_FAULT_STAMP=" + stamp}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	if err := awaitFault(t, stamp, c.action, n.DaemonPID()); err != nil {
		t.Fatalf("%s: %v\n%s", where, err, daemonLog(n))
	}
	at, pid := time.Now(), 0
	if c.pid != nil {
		pid = c.pid(t, n)
		for _, s := range []struct {
			pid int
			sig syscall.Signal
		}{{pid, c.sig}, {n.DaemonPID(), syscall.SIGCONT}} {
			if err := syscall.Kill(s.pid, s.sig); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
		}
	}
	f.forget()
	for time.Since(at) < failOpen+500*time.Millisecond { // What happens in this time is measured.
		<-time.After(10 * time.Millisecond)
	}
	// Without the worker the leases still take turns; otherwise none is frozen again.
	d := f.longest()
	t.Logf(
		"%s: frozen for at most %v, last seen frozen after %v",
		where,
		d.Round(time.Millisecond),
		f.last().Sub(at).Round(time.Millisecond),
	)
	if d > failOpen {
		t.Errorf("%s: a lease was frozen for %v", where, d)
	}
	if worker := strings.Contains(c.name, "worker"); !worker && f.last().Sub(at) > failOpen {
		t.Errorf("%s: %v are frozen after %v", where, f.now(), f.last().Sub(at))
	}
	if pid != 0 && c.sig == syscall.SIGSTOP {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
	}
	if c.pid != nil { // The daemon runs.
		memoryFits(status(t, n), func(id, format string, args ...any) { t.Errorf(where+": "+id+": "+format, args...) })
	}
}

// awaitFault waits until a daemon is at its fault point, which leaves the stamp. With the action "stop" it waits until the
// process is stopped too: the stamp is older than the signal, and a SIGCONT between the two would be lost.
func awaitFault(t *testing.T, stamp, action string, daemon int) error {
	t.Helper()
	return harness.Await(soon(t), time.Millisecond, "the fault point was not reached", func() (bool, error) {
		if _, err := os.Stat(stamp); err != nil || action != "stop" {
			return err == nil, nil
		}
		stat, err := procfs.Read(daemon)
		return stat.State == 'T', err
	})
}

// forget forgets the freezes that have ended, and how long the others have lasted.
func (f *freezes) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.most)
	for name := range f.since {
		f.since[name] = time.Now()
	}
}
