package node

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// A cgroup that a keyed lease names is of no other one, also while neither of them has a process: whichever had the processes, the amounts
// of the other would be enforced on nothing. So it is with a cgroup above or below it.
func TestCgroupOfTwoKeyedLeases(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	uuid := status(t, n).GPUs[2].UUID
	a, b := newPod(t, path, dir, "pod-a"), newPod(t, path, dir, "pod-b")
	a.make(t)
	a.run(t, n)
	const first, second = "kubernetes:s:0", "kubernetes:t:0"
	keyed(t, n, "--key", first, "--keep", "--grant", "whole", "--cgroup", a.path)
	b.make(t)
	l := keyed(t, n, "--key", second, "--keep", "--grant", "part", "--gpu-memory", "4GiB", "--cgroup", b.path).Lease
	for _, args := range [][]string{
		{"--key", first, "--keep", "--cgroup", b.path},
		{"--key", first, "--keep", "--cgroup", b.path + "/below"},
		{"--key", "kubernetes:u:0", "--keep", "--grant", "part", "--gpu-memory", "1GiB", "--cgroup", b.path},
	} {
		r := n.CLI(soon(t), append([]string{"lease", "attach", "-t", "red"}, args...)...)
		if r.Code != api.ExitConflict || !strings.Contains(r.Err, " has it, and a process is in one lease") {
			t.Errorf("%v: attach exits with %d: %s%s", args, r.Code, r.Out, r.Err)
		}
	}
	if s := status(t, n); len(s.Leases) != 2 {
		t.Errorf("there are leases: %+v", s.Leases)
	}
	if again := keyed(t, n, "--key", second, "--keep", "--cgroup", b.path).Lease; again.ID != l.ID {
		t.Errorf("the same request again has lease %s, and had %s", again.ID, l.ID)
	}
	over := b.run(t, n, n.Burn("--gpu", uuid, "--memory", "20GiB", "--hold")...)
	select {
	case <-over.done:
	case <-soon(t).Done():
		t.Fatalf("20 GiB are not ended in a lease of 4 GiB: %+v", byKey(t, n, second))
	}
	if r := n.CLI(soon(t), "lease", "release", "--key", second); r.Code != 0 {
		t.Fatalf("release exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	// Its cgroup is free again.
	keyed(t, n, "--key", first, "--keep", "--cgroup", b.path)
}

// A process that uses a GPU which leases share is in a lease of another place: what it uses is counted for none of them, and a condition
// says so. It is not stopped for that.
func TestUseOfASharedGPUFromAnotherPlace(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	uuid := status(t, n).GPUs[2].UUID
	p := newPod(t, path, dir, "pod")
	p.make(t)
	p.run(t, n)
	l := keyed(t, n, "--key", "kubernetes:s:0", "--keep", "--grant", "whole", "--cgroup", p.path).Lease
	other := keyed(t, n, "--key", "kubernetes:t:0", "--keep", "--grant", "part", "--gpu-memory", "4GiB").Lease
	burn := p.run(t, n, n.Burn("--gpu", uuid, "--memory", "2GiB", "--hold")...)
	const says = "uses GPU 2 from a lease of another place; it is not stopped for that: 'gpushare lease stop "
	awaitStatus(t, n, "the use is not reported", func(s *api.Status) bool { return hasCondition(s, "unattributed", says+l.ID) })
	// It closes nothing: the GPU is shared.
	if s := status(t, n); s.GPUs[2].State != "ok" || leaseByID(s, other.ID) == nil || !burn.living() {
		t.Errorf("GPU 2 is %+v, the leases are %+v", s.GPUs[2], s.Leases)
	}
	burn.end(t)
	awaitStatus(t, n, "the condition outlives its process", func(s *api.Status) bool { return !hasCondition(s, "unattributed", says) })
}
