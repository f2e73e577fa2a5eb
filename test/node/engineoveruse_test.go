package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// slurmJob is a job as Slurm has it: its Prolog attached it when only the process of its first step was there, and the processes of its
// tasks come later, in a cgroup of their own below that of the job.
type slurmJob struct {
	key, task string
	lease     api.Lease
	step      *outside
}

func newSlurmJob(t *testing.T, n *harness.Node, path, dir, id, memory string) *slurmJob {
	t.Helper()
	j := &slurmJob{key: "slurm:lab:" + id + ":0"}
	job := belowCgroup(t, dir, "job_"+id)
	extern := belowCgroup(t, job, "step_extern", "slurm")
	j.task = belowCgroup(t, job, "step_batch", "user", "task_0")
	j.step = startOutside(t, n, 0, "sleep", "600")
	enter(t, extern, j.step.pid())
	j.lease = *keyed(t, n, "--key", j.key, "--cgroup", path+"/job_"+id, "--grant", "part", "--gpu-memory", memory).Lease
	return j
}

// burn starts a task of the job that uses the GPU.
func (j *slurmJob) burn(t *testing.T, n *harness.Node, gpu, memory string, more ...string) *outside {
	t.Helper()
	o := startOutside(t, n, 0, n.Burn(append([]string{"--gpu", gpu, "--memory", memory, "--hold"}, more...)...)...)
	enter(t, j.task, o.pid())
	return o
}

// A job above its own amount of GPU memory is ended: each of its processes that uses the GPU, and no process of another job of the same
// grant, nor those with which the engine supervises the job. The reason is there for the engine to print, also after the end.
func TestEngineJobUsesTooMuch(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	uuid := status(t, n).GPUs[2].UUID
	good, bad := newSlurmJob(t, n, path, dir, "1", "3GiB"), newSlurmJob(t, n, path, dir, "2", "4GiB")
	within := good.burn(t, n, uuid, "2GiB")
	events := follow(t, n)
	awaitStatus(t, n, "the memory of the first job is not counted", func(s *api.Status) bool {
		l := leaseByID(s, good.lease.ID)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Used >= 2<<30 && l.GPUMemory.Limit == 3<<30
	})
	// Together they have less than the grant: it is the amount of the job that counts.
	workers := []*outside{bad.burn(t, n, uuid, "3GiB"), bad.burn(t, n, uuid, "2GiB", "--ignore-term")}
	events.await(t, "memory.over", bad.lease.ID) // It names the job before its processes end.
	for i, w := range workers {
		select {
		case <-w.done:
		case <-soon(t).Done():
			t.Fatalf("process %d of the job runs on: %+v", i, byKey(t, n, bad.key))
		}
	}
	if l := byKey(t, n, bad.key); l.State != api.LeaseRunning || !strings.Contains(l.Reason, "of 4 GiB GPU memory") {
		t.Errorf("the job that was ended is %+v", l)
	}
	if !within.living() || !good.step.living() || !bad.step.living() {
		t.Errorf("more than the job was ended: a neighbour runs: %v, steps: %v, %v", within.living(), good.step.living(), bad.step.living())
	}
	if l := byKey(t, n, good.key); l.Reason != "" || l.GPUMemory.Stage != "" {
		t.Errorf("the neighbour is %+v, %+v", l, l.GPUMemory)
	}
	if err := bad.step.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "the lease outlives its last process", func(s *api.Status) bool { return leaseByID(s, bad.lease.ID) == nil })
	if l := byKey(t, n, bad.key); l.Ended == nil || !strings.Contains(l.Reason, "of 4 GiB GPU memory") {
		t.Errorf("the ended lease does not say why: %+v", l)
	}
	r := n.CLI(soon(t), "lease", "show", "--key", bad.key)
	if r.Code != 0 || !strings.Contains(r.Out, "reason     red/part") {
		t.Errorf("show exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// Where the driver limits the GPU memory of cgroups, the limit of a job is its own amount, and not that of its grant.
func TestEngineJobHasAHardLimit(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, r615)
	onCgroups(t, n)
	apply(t, n, limited)
	p := startOutside(t, n, 0, "sleep", "60")
	enter(t, dir, p.pid())
	id := keyed(t, n, "--key", "slurm:lab:1:0", "--cgroup", path, "--grant", "part", "--gpu-memory", "3GiB").Lease.ID
	awaitBackend(t, n, id, "driver", true)
	if got := limitOf(t, n, path); got != 3<<30 {
		t.Errorf("its limit is %d", got)
	}
	burn := startOutside(
		t, n, 0, "sh", "-c",
		fmt.Sprintf("echo $$ >%s/cgroup.procs; exec %s", dir, strings.Join(n.Burn("--gpu", "0", "--memory", "4GiB", "--hold"), " ")),
	)
	select {
	case <-burn.done:
	case <-soon(t).Done():
		t.Fatal("4 GiB are not refused to a job of 3 GiB")
	}
	if r := n.CLI(soon(t), "lease", "release", "--key", "slurm:lab:1:0"); r.Code != 0 || !p.living() {
		t.Fatalf("%s%s", r.Out, r.Err)
	}
	if got := limitOf(t, n, path); got != 0 {
		t.Errorf("after the release its limit is %d", got)
	}
}
