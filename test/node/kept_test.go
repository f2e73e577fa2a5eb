package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// pod is the cgroup of a pod, which the kubelet makes, removes and makes again while the claim of the pod is prepared.
type pod struct{ path, dir string }

func newPod(t *testing.T, path, dir, name string) *pod {
	t.Helper()
	p := &pod{path + "/" + name, filepath.Join(dir, name)}
	t.Cleanup(func() { p.remove(t) })
	return p
}

func (p *pod) make(t *testing.T) {
	t.Helper()
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// remove removes the cgroup when its processes have gone; one that is not there is no error.
func (p *pod) remove(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // Also when the test has ended.
	defer cancel()
	err := harness.Await(ctx, 10*time.Millisecond, "the cgroup of a pod is not removed", func() (bool, error) {
		err := os.Remove(p.dir)
		return err == nil || errors.Is(err, fs.ErrNotExist), nil
	})
	if err != nil {
		t.Error(err)
	}
}

// run starts a process in the cgroup.
func (p *pod) run(t *testing.T, n *harness.Node, argv ...string) *outside {
	t.Helper()
	if len(argv) == 0 {
		argv = []string{"sleep", "600"}
	}
	o := startOutside(t, n, 0, argv...)
	enter(t, p.dir, o.pid())
	return o
}

// end kills a process and waits for its end.
func (o *outside) end(t *testing.T) {
	t.Helper()
	if err := o.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	<-o.done
}

// awaitEmpty waits until a kept lease has no process, or has one.
func awaitEmpty(t *testing.T, n *harness.Node, id string, empty bool, when string) *api.Lease {
	t.Helper()
	s := awaitStatus(t, n, fmt.Sprintf("%s: empty is not %v", when, empty), func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.State == api.LeaseRunning && (l.Engine.EmptySince != nil) == empty
	})
	return leaseByID(s, id)
}

// A lease that is kept has its place until it is released: its last process ends and another one comes, its cgroup is removed and made
// again, and gpushared is killed before each of these.
func TestKeptLease(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	p := newPod(t, path, dir, "pod")
	const key = "kubernetes:uid-1:0"
	l := keyed(t, n, "--key", key, "--keep", "--grant", "whole", "--cgroup", p.path).Lease
	if l.State != api.LeasePlaced || l.Engine.BindBy != nil || l.Engine.EmptySince == nil || !l.Engine.Kept {
		t.Fatalf("before its first process it is %+v, %+v", l, l.Engine)
	}
	events := follow(t, n)
	p.make(t)
	process := p.run(t, n)
	events.await(t, "lease.started", l.ID)
	process.end(t)
	events.await(t, "lease.empty", l.ID)
	r := n.CLI(soon(t), "status")
	if r.Code != 0 || !strings.Contains(r.Out, "no process since ") {
		t.Errorf("status does not say that the lease waits: %s", r.Out)
	}
	if r := n.CLI(soon(t), "lease", "show", l.ID); !strings.Contains(r.Out, "it is kept until it is released") {
		t.Errorf("show does not say that the lease waits: %s", r.Out)
	}
	process = p.run(t, n)
	events.await(t, "lease.resumed", l.ID)
	for _, killed := range []bool{false, true} {
		// change does what a kubelet does while a lease waits, or does not.
		change := func(what string, empty bool, f func()) {
			t.Helper()
			if killed {
				what += " while no daemon runs"
				n.KillDaemon()
			}
			f()
			if killed {
				if err := n.StartDaemon(soon(t)); err != nil {
					t.Fatal(err)
				}
			}
			now := awaitEmpty(t, n, l.ID, empty, what)
			if now.ID != l.ID || (now.PID == 0) != empty {
				t.Errorf("%s: the lease is %+v", what, now)
			}
			if r := n.CLI(soon(t), "run", "-t", "red", "--grant", "whole", "--", "true"); r.Code == 0 {
				t.Errorf("%s: another lease has its place", what)
			}
		}
		change("its last process ends", true, func() { process.end(t) })
		change("a process comes", false, func() { process = p.run(t, n) })
		change("its cgroup is removed", true, func() { process.end(t); p.remove(t) })
		change("nothing happens", true, func() {})
		change("its cgroup is made again", false, func() { p.make(t); process = p.run(t, n) })
		change("its cgroup is removed and made at once", false, func() {
			process.end(t)
			p.remove(t)
			p.make(t)
			process = p.run(t, n)
		})
		// It may be seen as empty for a moment, or not at all: in the end it is named by the process that is there.
		awaitStatus(t, n, "the lease is not named by its process", func(s *api.Status) bool {
			x := leaseByID(s, l.ID)
			return x != nil && x.PID == process.pid() && x.Engine.Bound
		})
		if again := keyed(t, n, "--key", key, "--keep", "--cgroup", p.path).Lease; again.ID != l.ID || !again.Engine.Bound {
			t.Errorf("the key has lease %+v", again)
		}
	}
	process.end(t)
	awaitEmpty(t, n, l.ID, true, "before the release")
	if r := n.CLI(soon(t), "lease", "release", "--key", key); r.Code != 0 {
		t.Errorf("a kept lease without processes is not released: %s", r.Err)
	}
	if x := byKey(t, n, key); x.Ended == nil || !strings.Contains(x.Reason, "released by") {
		t.Errorf("the ended lease is %+v", x)
	}
}

// A kept lease without processes ends when an administrator stops it, and when its time is over.
func TestKeptLeaseEnds(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	events := follow(t, n)
	empty := func(name string, more ...string) string {
		p := newPod(t, path, dir, name)
		p.make(t)
		process := p.run(t, n)
		args := []string{"--key", "kubernetes:" + name, "--keep", "--grant", "whole", "--cgroup", p.path}
		l := keyed(t, n, append(args, more...)...).Lease
		process.end(t)
		events.await(t, "lease.empty", l.ID)
		return l.ID
	}
	stopped := empty("stopped")
	if r := n.CLI(soon(t), "lease", "stop", stopped); r.Code != 0 {
		t.Errorf("it is not stopped: %s", r.Err)
	}
	events.await(t, "lease.ended", stopped)
	events.await(t, "lease.ended", empty("timed", "--time", "2s"))
	for _, c := range []struct {
		says string
		args []string
	}{
		{"both keep and bind_timeout", []string{"--key", "kubernetes:x", "--keep", "--bind-timeout", "1m"}},
		{"--keep are of keyed leases", []string{"--keep", "--pid", "1"}},
	} {
		r := n.CLI(soon(t), append([]string{"lease", "attach", "-t", "red", "--grant", "whole"}, c.args...)...)
		if r.Code != api.ExitUsage || !strings.Contains(r.Err, c.says) {
			t.Errorf("%v: attach exits with %d: %s", c.args, r.Code, r.Err)
		}
	}
	slurm := newPod(t, path, dir, "job")
	slurm.make(t)
	job := slurm.run(t, n)
	l := keyed(t, n, "--key", "slurm:lab:1:0", "--grant", "whole", "--cgroup", slurm.path).Lease
	if r := n.CLI(soon(t), "lease", "attach", "-t", "red", "--key", "slurm:lab:1:0", "--keep"); r.Code != api.ExitConflict ||
		!strings.Contains(r.Err, "requested without") {
		t.Errorf("a lease of a job becomes a kept one: %d, %s", r.Code, r.Err)
	}
	job.end(t)
	events.await(t, "lease.ended", l.ID) // Without --keep it ends with its last process, as before.
}

// The pods of a claim are one lease: each is in it, what they use counts together, and over-use ends the processes of all.
func TestKeptLeaseOfSeveralCgroups(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	uuid := status(t, n).GPUs[2].UUID
	first, second := newPod(t, path, dir, "pod-1"), newPod(t, path, dir, "pod-2")
	first.make(t)
	idle := first.run(t, n)
	const key = "kubernetes:uid-1:0"
	args := []string{"--key", key, "--keep", "--grant", "part", "--gpu-memory", "4GiB", "--cgroup"}
	l := keyed(t, n, append(args, first.path)...).Lease
	events := follow(t, n)
	joined := keyed(t, n, append(args, second.path)...).Lease
	if joined.ID != l.ID || len(joined.Engine.Cgroups) != 2 {
		t.Fatalf("the second cgroup has lease %+v, %+v", joined, joined.Engine)
	}
	events.await(t, "lease.joined", l.ID)
	if not := strings.Join(joined.Isolation.NotEnforced, "\n"); !strings.Contains(not, "its 2 cgroups together by the driver") {
		t.Errorf("it is not said that the driver does not limit the sum: %s", not)
	}
	idle.end(t)
	awaitEmpty(t, n, l.ID, true, "the first pod has ended, the second has not begun")
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	second.make(t)
	burn := func(p *pod, memory string) *outside {
		return p.run(t, n, n.Burn("--gpu", uuid, "--memory", memory, "--hold")...)
	}
	use := func(what string, bytes uint64) {
		t.Helper()
		awaitStatus(t, n, what, func(s *api.Status) bool {
			x := leaseByID(s, l.ID)
			return x != nil && x.GPUMemory != nil && x.GPUMemory.Used >= bytes
		})
	}
	workers := []*outside{burn(second, "1GiB")}
	awaitEmpty(t, n, l.ID, false, "the second pod runs")
	use("the memory of the second pod is not counted", 1<<30)
	workers = append(workers, burn(first, "2GiB"))
	use("the memory of both pods is not counted together", 3<<30)
	events = follow(t, n)
	workers = append(workers, burn(second, "2GiB")) // Each has less than the amount, and both have more.
	events.await(t, "memory.over", l.ID)
	for i, w := range workers {
		select {
		case <-w.done:
		case <-soon(t).Done():
			t.Fatalf("process %d runs on: %+v", i, byKey(t, n, key))
		}
	}
	now := awaitEmpty(t, n, l.ID, true, "after the over-use")
	if !strings.Contains(now.Reason, "of 4 GiB GPU memory") {
		t.Errorf("the lease does not say why: %q", now.Reason)
	}
	// The containers start again, and are limited again.
	again := burn(first, "3GiB")
	use("the memory of a container that started again is not counted", 3<<30)
	more := burn(second, "2GiB")
	// They came within the grace of those before, so that it is seen again only after 15 s (LeakAfter) and the pause between two stops.
	later, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, w := range []*outside{again, more} {
		select {
		case <-w.done:
		case <-later.Done():
			t.Fatalf("after the restart of the containers over-use is not ended: %+v", byKey(t, n, key))
		}
	}
}

// Where the driver limits the GPU memory of cgroups, a cgroup that is made again is limited as the one before it.
func TestKeptLeaseIsLimitedAgain(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, r615)
	onCgroups(t, n)
	apply(t, n, limited)
	p := newPod(t, path, dir, "pod")
	p.make(t)
	process := p.run(t, n)
	id := keyed(t, n, "--key", "kubernetes:uid-1:0", "--keep", "--cgroup", p.path, "--grant", "part", "--gpu-memory", "3GiB").Lease.ID
	awaitBackend(t, n, id, "driver", true)
	process.end(t)
	p.remove(t)
	awaitEmpty(t, n, id, true, "its cgroup is removed")
	p.make(t)
	p.run(t, n)
	awaitEmpty(t, n, id, false, "its cgroup is made again")
	awaitBackend(t, n, id, "driver", true)
	if got := limitOf(t, n, p.path); got != 3<<30 {
		t.Errorf("its limit is %d", got)
	}
}

// A cgroup of a kept lease that another user makes again is not of the lease any more.
func TestKeptLeaseOfAForeignCgroup(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	first, second := newPod(t, path, dir, "pod-1"), newPod(t, path, dir, "pod-2")
	first.make(t)
	first.run(t, n)
	args := []string{"--key", "kubernetes:uid-1:0", "--keep", "--grant", "whole", "--cgroup"}
	l := keyed(t, n, append(args, first.path)...).Lease
	keyed(t, n, append(args, second.path)...)
	second.make(t)
	if err := os.Chown(second.dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	theirs := second.run(t, n)
	awaitStatus(t, n, "a cgroup of another user belongs to the lease", func(s *api.Status) bool {
		x := leaseByID(s, l.ID)
		return x != nil && len(x.Engine.Cgroups) == 1 && x.Isolation.Cgroup == first.path
	})
	if !theirs.living() {
		t.Error("a process of another user was ended")
	}
}
