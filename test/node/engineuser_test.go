package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// The users of these tests. The engine has uid 65534.
const (
	jobUser   = 61001
	otherUser = 61002
	subUser   = 61003 // a further id of jobUser, as /etc/subuid gives it
)

// ofUsers are processes in one cgroup that use a GPU.
type ofUsers struct{ job, container, other, root *outside }

func useGPU(t *testing.T, n *harness.Node, dir, gpu string) *ofUsers {
	t.Helper()
	burn := n.Burn("--gpu", gpu, "--memory", "1GiB", "--hold")
	p := &ofUsers{
		job: startOutside(t, n, jobUser, burn...), other: startOutside(t, n, otherUser, burn...), root: startOutside(t, n, 0, burn...),
		container: inContainer(t, n, burn...),
	}
	for _, o := range []*outside{p.job, p.container, p.other, p.root} {
		enter(t, dir, o.pid())
	}
	return p
}

// inContainer starts a process of a container that jobUser has without root: it has a further id of its user.
func inContainer(t *testing.T, n *harness.Node, argv ...string) *outside {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	if err := syscall.Mkfifo(ready, 0o666); err != nil {
		t.Fatal(err)
	}
	public(t, filepath.Dir(ready))
	if err := os.Chmod(ready, 0o666); err != nil {
		t.Fatal(err)
	}
	script := "read at < " + ready + "; exec setpriv --reuid 1 --regid 0 --clear-groups \"$@\""
	o := startOutside(t, n, jobUser, append([]string{"unshare", "--user", "sh", "-c", script, "sh"}, argv...)...)
	// It has its namespace when it opens the file.
	f, err := os.OpenFile(ready, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, ids := range []string{"gid_map", "uid_map"} {
		maps := fmt.Sprintf("0 %d 1\n1 %d 1\n", jobUser, subUser)
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", o.pid(), ids), []byte(maps), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	return o
}

func needsContainers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	cmd := exec.Command("unshare", "--user", "setpriv", "--version")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: jobUser, Gid: jobUser}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("a user cannot create a user namespace here: %v: %s", err, out)
	}
}

// awaitProcesses waits until as many processes of a lease use its GPU.
func awaitProcesses(t *testing.T, n *harness.Node, id string, count int) {
	t.Helper()
	awaitStatus(t, n, fmt.Sprintf("the lease has no %d processes", count), func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.Processes >= count
	})
}

// check reports the processes that run and should have ended, or the reverse, when a stop is over.
func (p *ofUsers) check(t *testing.T, otherEnds bool) {
	t.Helper()
	for _, c := range []struct {
		name string
		o    *outside
		ends bool
	}{
		{"the process of the user of the lease", p.job, true},
		{"the one in a container of that user", p.container, true},
		{"the one of another user", p.other, otherEnds},
		{"the one of root", p.root, false},
	} {
		if living := c.o.living(); living == c.ends {
			t.Errorf("%s runs: %v", c.name, living)
		}
	}
}

// An engine that is not root names a cgroup of root with processes of others: only those of the user whom the lease is for end with its
// time. The others count for the lease, and a condition names them.
func TestAnEngineEndsProcessesOfItsUserAlone(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsContainers(t)
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	p := useGPU(t, n, dir, "2")
	events := follow(t, n)
	r := as(
		t,
		n,
		"lease",
		"attach",
		"-t",
		"red",
		"--key",
		"hub:1",
		"--grant",
		"part",
		"--user",
		fmt.Sprint(jobUser),
		"--cgroup",
		path,
		"--time",
		"5s",
	)
	if r.Code != 0 {
		t.Fatalf("attach exits with %d: %s", r.Code, r.Err)
	}
	l := byKey(t, n, "hub:1")
	awaitProcesses(t, n, l.ID, 4)
	awaitStatus(t, n, "no condition names the processes of others", func(s *api.Status) bool {
		return hasCondition(s, "lease-others", l.ID) && hasCondition(s, "lease-others", fmt.Sprintf("pid %d (", p.other.pid())) &&
			hasCondition(s, "lease-others", fmt.Sprintf("pid %d (", p.root.pid())) &&
			!hasCondition(s, "lease-others", fmt.Sprintf("pid %d (", p.job.pid())) &&
			!hasCondition(s, "lease-others", fmt.Sprintf("pid %d (", p.container.pid()))
	})
	events.await(t, "lease.ended", l.ID)
	p.check(t, false)
	awaitStatus(t, n, "the condition outlives the lease", func(s *api.Status) bool { return !hasCondition(s, "lease-others", l.ID) })
}

// The same for too much GPU memory, of which the processes of others have the most.
func TestOverUseEndsProcessesOfTheUserAlone(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsContainers(t)
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	p := useGPU(t, n, dir, "2")
	r := as(
		t, n, "lease", "attach", "-t", "red", "--key", "hub:1", "--grant", "part", "--user", fmt.Sprint(jobUser), "--cgroup", path,
		"--gpu-memory", "1GiB",
	)
	if r.Code != 0 {
		t.Fatalf("attach exits with %d: %s", r.Code, r.Err)
	}
	for _, o := range []*outside{p.job, p.container} {
		select {
		case <-o.done:
		case <-soon(t).Done():
			t.Fatal("a process of the user of the lease runs on")
		}
	}
	// What is above the limit still is: the next signal would be theirs.
	awaitStatus(t, n, "its memory is not that of the others", func(s *api.Status) bool {
		if len(s.Leases) == 0 {
			return false
		}
		l := s.Leases[0]
		return l.Processes == 2 && l.GPUMemory != nil && l.GPUMemory.Used >= 2<<30
	})
	if r := n.CLI(soon(t), "lease", "stop", byKey(t, n, "hub:1").ID); r.Code != 0 {
		t.Errorf("stop exits with %d: %s", r.Code, r.Err)
	}
	p.check(t, false)
}

// The Prolog of Slurm, which is root's, names a user: what runs in the cgroup of the job ends with it, of each user, but for what is
// root's, as slurmstepd. Without a user, as of a pod, all ends.
func TestRootNamesTheCgroupOfAJob(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsContainers(t)
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	job := belowCgroup(t, dir, "job_1")
	p := useGPU(t, n, job, "2")
	l := keyed(t, n, "--key", "slurm:lab:1:0", "--grant", "part", "--user", fmt.Sprint(jobUser), "--cgroup", path+"/job_1").Lease
	awaitProcesses(t, n, l.ID, 4)
	if r := n.CLI(soon(t), "lease", "stop", l.ID); r.Code != 0 {
		t.Fatalf("stop exits with %d: %s", r.Code, r.Err)
	}
	p.check(t, true)

	pod := belowCgroup(t, dir, "pod")
	p = useGPU(t, n, pod, "2")
	l = keyed(t, n, "--key", "kubernetes:1:0", "--keep", "--grant", "part", "--cgroup", path+"/pod").Lease
	awaitProcesses(t, n, l.ID, 4)
	// Another engine does not give a lease of root more processes to end.
	r := as(t, n, "lease", "attach", "--key", "kubernetes:1:0", "--keep", "--cgroup", path+"/job_1")
	if r.Code != api.ExitDenied || !strings.Contains(r.Err, "root requested the lease") {
		t.Errorf("attach exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := as(t, n, "lease", "attach", "--key", "kubernetes:1:0", "--keep", "--cgroup", path+"/pod"); r.Code != 0 {
		t.Errorf("attach of what it has exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "lease", "stop", l.ID); r.Code != 0 {
		t.Fatalf("stop exits with %d: %s", r.Code, r.Err)
	}
	for _, o := range []*outside{p.job, p.container, p.other, p.root} {
		if o.living() {
			t.Errorf("pid %d of the pod runs", o.pid())
		}
	}
}

// A job is not frozen for the shares of others while a process of another user is in the cgroup that an engine named which is not root.
func TestAJobWithProcessesOfOthersIsNotFrozen(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsFreezer(t)
	path, top := newCgroup(t)
	n := start(t, quick)
	spec := strings.Replace(halves, "enforce: on", "enforce: on, engine: {members: {users: [nobody]}, freeze: [slurm]}", 1)
	apply(t, n, spec)
	task := belowCgroup(t, top, "job_1", "step_0", "user", "task_0")
	burn := n.Burn("--gpu", status(t, n).GPUs[2].UUID, "--memory", "64MiB", "--kernel", "5ms", "--queue", "10")
	job, other := startOutside(t, n, jobUser, burn...), startOutside(t, n, otherUser, "sleep", "600")
	enter(t, task, job.pid())
	enter(t, task, other.pid())
	r := as(
		t, n, "lease", "attach", "-t", "red", "--key", "slurm:lab:1:0", "--grant", "part", "--user", fmt.Sprint(jobUser), "--cgroup",
		path+"/job_1",
	)
	if r.Code != 0 {
		t.Fatalf("attach exits with %d: %s", r.Code, r.Err)
	}
	id := byKey(t, n, "slurm:lab:1:0").ID
	busy(t, n, "blue")
	awaitShare(t, n, id, "its share is shown as enforced", func(s *api.LeaseShare) bool {
		return !s.Enforced && strings.Contains(s.Reason, fmt.Sprintf("pid %d (sleep) in its cgroup is not of", other.pid()))
	})
	f := followFreezes(t, map[string]string{"job": task})
	if err := other.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	f.taking(t, "job")
}

// The driver does not limit a cgroup of root that an engine named which is not root: allocations of others there would be refused.
func TestACgroupOfOthersIsNotLimited(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, r615)
	onCgroups(t, n)
	apply(t, n, strings.Replace(limited, "enforce: on", "enforce: on, engine: {members: {users: [nobody]}}", 1))
	at := belowCgroup(t, dir, "own")
	if err := os.Chown(at, jobUser, jobUser); err != nil {
		t.Fatal(err)
	}
	p, own := startOutside(t, n, 0, "sleep", "60"), startOutside(t, n, jobUser, "sleep", "60")
	enter(t, dir, p.pid())
	enter(t, at, own.pid())
	for _, c := range []struct {
		cgroup string
		limit  uint64
	}{{path + "/own", 3 << 30}, {path, 0}} {
		r := as(
			t,
			n,
			"lease",
			"attach",
			"-t",
			"red",
			"--key",
			"hub:1"+strings.ReplaceAll(c.cgroup, "/", ":"),
			"--grant",
			"part",
			"--gpu-memory",
			"3GiB",
			"--user",
			fmt.Sprint(jobUser),
			"--cgroup",
			c.cgroup,
		)
		if r.Code != 0 {
			t.Fatalf("attach exits with %d: %s", r.Code, r.Err)
		}
		id := status(t, n).Leases[0].ID
		awaitBackend(t, n, id, map[bool]string{true: "driver", false: "reactive"}[c.limit > 0], c.limit > 0)
		if got := limitOf(t, n, c.cgroup); got != c.limit {
			t.Errorf("the limit of %s is %d, want %d", c.cgroup, got, c.limit)
		}
		if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
			t.Fatalf("stop exits with %d: %s", r.Code, r.Err)
		}
	}
}
