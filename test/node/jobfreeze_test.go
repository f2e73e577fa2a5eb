package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// freezesJobs is a spec whose node permits to freeze the jobs of an engine.
func freezesJobs(spec, engines string) string {
	return strings.Replace(spec, "enforce: on", "enforce: on, engine: {freeze: ["+engines+"]}", 1)
}

// engineJob is a job of Slurm whose task keeps GPU 2 busy, with a lease of a tenant's grant part.
type engineJob struct {
	lease string
	dir   string // of the cgroup of the job
	task  string // of the cgroup of its task
	work  *outside
}

// stepd is the directory of the cgroup of slurmstepd.
func (j *engineJob) stepd() string { return filepath.Join(j.dir, "step_0", "slurm") }

// busyJob starts a job.
func busyJob(t *testing.T, n *harness.Node, tenant string) *engineJob {
	t.Helper()
	path, top := newCgroup(t)
	j := &engineJob{dir: belowCgroup(t, top, "node1_slurmstepd.scope", "job_42")}
	step := belowCgroup(t, j.dir, "step_0")
	enter(t, belowCgroup(t, step, "slurm"), startOutside(t, n, 0, "sleep", "600").pid())
	j.task = belowCgroup(t, step, "user", "task_0")
	j.work = startOutside(t, n, 0, n.Burn("--gpu", status(t, n).GPUs[2].UUID, "--memory", "64MiB", "--kernel", "5ms", "--queue", "10")...)
	enter(t, j.task, j.work.pid())
	r := n.CLI(
		soon(t), "--json", "lease", "attach", "-t", tenant, "--grant", "part", "--key", "slurm:lab:42:0",
		"--cgroup", path+"/node1_slurmstepd.scope/job_42",
	)
	var g api.LeaseGrant
	if err := json.Unmarshal([]byte(r.Out), &g); r.Code != 0 || err != nil {
		t.Fatalf("attach exits with %d: %s%s, %v", r.Code, r.Out, r.Err, err)
	}
	j.lease = g.Lease.ID
	awaitStatus(t, n, "the job does not use the GPU", func(s *api.Status) bool {
		l := findLease(s, j.lease)
		return l != nil && l.Processes > 0
	})
	return j
}

// The job of an engine has its share of the time if the spec permits to freeze it: its task takes turns with another lease, slurmstepd is
// never frozen, and what is shown is as it is. Without the permission, and for another engine, nothing of it is frozen.
func TestJobsHaveTheirShare(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsFreezer(t)
	n := start(t, quick)
	apply(t, n, freezesJobs(halves, "slurm"))
	job := busyJob(t, n, "red")
	_, blue := busy(t, n, "blue")
	f := followFreezes(t, map[string]string{"job": job.task, "blue": blue, "slurmstepd": job.stepd()})
	f.taking(t, "job", "blue")
	awaitShare(t, n, job.lease, "its share is never shown as met", func(s *api.LeaseShare) bool {
		return s.State == api.ShareMet && s.Enforced && s.Freezes != nil && s.Freezes.Count > 0
	})
	if l := findLease(
		status(t, n),
		job.lease,
	); !l.Isolation.Freeze ||
		strings.Contains(strings.Join(l.Isolation.NotEnforced, "\n"), "time share") {
		t.Errorf("it can be frozen: %v, not enforced: %v", l.Isolation.Freeze, l.Isolation.NotEnforced)
	}
	if r := n.CLI(soon(t), "explain", job.lease); r.Code != 0 || !strings.Contains(r.Out, "its cgroup's freezer, read back") {
		t.Errorf("explain exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	// A second step is frozen too.
	later := belowCgroup(t, job.dir, "step_1", "user", "task_0")
	second := startOutside(t, n, 0, "sleep", "600")
	enter(t, later, second.pid())
	f2 := followFreezes(t, map[string]string{"later": later})
	f2.taking(t, "later")
	for engines, says := range map[string]string{"": "jobs of slurm are not frozen", "kubernetes": "jobs of slurm are not frozen"} {
		apply(t, n, freezesJobs(halves, engines))
		awaitShare(t, n, job.lease, "its share is still shown as enforced", func(s *api.LeaseShare) bool {
			return !s.Enforced && strings.Contains(s.Reason, says)
		})
		for _, dir := range []string{job.task, later} {
			if b, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); err != nil || strings.TrimSpace(string(b)) != "0" {
				t.Errorf("freeze: [%s]: %s is frozen: %q, %v", engines, dir, b, err)
			}
		}
		l := findLease(status(t, n), job.lease)
		if missing := strings.Join(
			l.Isolation.NotEnforced,
			"\n",
		); l.Isolation.Freeze ||
			!strings.Contains(missing, "its time share: "+says) {
			t.Errorf("freeze: [%s]: it can be frozen: %v, not enforced: %s", engines, l.Isolation.Freeze, missing)
		}
		if r := n.CLI(soon(t), "explain", job.lease); r.Code != 0 || !strings.Contains(r.Out, says) {
			t.Errorf("explain exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
	}
	apply(t, n, freezesJobs(halves, "slurm"))
	f.taking(t, "job", "blue")
	// What an engine does with a job works while it is frozen: SIGTERM at the next slice, SIGKILL at once.
	if err := syscall.Kill(job.work.pid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-job.work.done
	if err := syscall.Kill(second.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-second.done
	if f.counted("slurmstepd") > 0 {
		t.Error("slurmstepd was frozen")
	}
	if f.longest() > 2*failOpen {
		t.Errorf("a freeze lasted %v", f.longest())
	}
}

// A job with a process on the GPU that gpushare does not freeze is not shown as limited to its share.
func TestJobWithAProcessElsewhere(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	needsFreezer(t)
	n := start(t, quick)
	apply(t, n, freezesJobs(halves, "slurm"))
	job := busyJob(t, n, "red")
	busy(t, n, "blue")
	awaitShare(t, n, job.lease, "its share is not enforced", func(s *api.LeaseShare) bool { return s.Enforced })
	enter(t, job.stepd(), job.work.pid())
	awaitShare(t, n, job.lease, "what is not frozen is shown as limited", func(s *api.LeaseShare) bool {
		return !s.Enforced && strings.Contains(s.Reason, "which gpushare does not freeze")
	})
	if r := n.CLI(soon(t), "explain", job.lease); r.Code != 0 || !strings.Contains(r.Out, "which gpushare does not freeze") {
		t.Errorf("explain exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	enter(t, job.task, job.work.pid())
	awaitShare(t, n, job.lease, "its share is not enforced again", func(s *api.LeaseShare) bool { return s.Enforced })
}
