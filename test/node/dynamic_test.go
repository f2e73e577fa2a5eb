package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// ondemand is a spec of two GPUs on which instances are created for leases.
func ondemand(keep string, indexes ...string) string {
	return `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [` + strings.Join(indexes, ", ") + `]}, mode: mig, mig: {dynamic: true, keep: ` + keep + `}}
tenants:
  - name: red
    grants:
      - {name: small, mig: 1g.5gb, max_leases: 14}
      - {name: cut, mig: 2g.10gb, max_leases: 6}
      - {name: whole, mig: 7g.40gb, max_leases: 2}
  - name: blue
    grants: [{name: half, mig: 3g.20gb, max_leases: 4}]
`
}

// unhurried starts a node with driver timeouts for a busy host.
func unhurried(t *testing.T, file string) *harness.Node {
	t.Helper()
	n := newNode(t, file)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

// run runs a command on demand that must succeed and returns its output.
func run(t *testing.T, n *harness.Node, args ...string) string {
	t.Helper()
	r := n.CLI(soon(t), append([]string{"run", "-q"}, args...)...)
	if r.Code != 0 {
		t.Fatalf("run %v exits with %d: %s\n%s", args, r.Code, r.Err, daemonLog(n))
	}
	return r.Out
}

// awaitTruth waits until condition returns true for the truth about the GPUs.
func awaitTruth(t *testing.T, n *harness.Node, what string, condition func(truth string) bool) {
	t.Helper()
	last := ""
	err := harness.Await(soon(t), 20*time.Millisecond, what, func() (bool, error) {
		last = truth(t, n)
		return condition(last), nil
	})
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, last, daemonLog(n))
	}
}

// runOnDemand starts a job whose lease may need a new instance.
func runOnDemand(t *testing.T, n *harness.Node, tenant, grant string, command ...string) (*harness.Job, string) {
	t.Helper()
	job, err := n.Run(
		"-q",
		"-t",
		tenant,
		"--grant",
		grant,
		"--",
		"sh",
		"-c",
		`echo "lease=$GPUSHARE_LEASE="; exec `+strings.Join(command, " "),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "lease="); err != nil {
		t.Fatalf("%v\n%s", err, daemonLog(n))
	}
	_, rest, _ := strings.Cut(job.Output(), "lease=")
	id, _, _ := strings.Cut(rest, "=")
	return job, id
}

func empty(truth string) bool { return truth == "" }

// An instance is created for a lease, used by the next lease, and destroyed after it was idle for the time of keep.
func TestInstancesOnDemand(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := unhurried(t, quick)
	apply(t, n, ondemand("1h", "0", "1"))
	if got := truth(t, n); got != "" {
		t.Fatalf("instances without a lease: %s", got)
	}
	job, id := runOnDemand(t, n, "red", "cut", "sleep", "60")
	s := awaitChange(t, n)
	l := leaseByID(s, id)
	if l == nil || len(l.Devices) != 1 || !strings.HasPrefix(l.Devices[0], "MIG-") || l.InstanceGeneration == 0 {
		t.Fatalf("the lease is %+v\n%s\n%s", l, job.Output(), daemonLog(n))
	}
	explained(t, s, "with one lease")
	if got := strings.Count(truth(t, n), "GPU"); got != 1 {
		t.Errorf("one lease partitions the node as %s", truth(t, n))
	}
	job.Kill()
	awaitEnd(t, job)
	awaitStatus(t, n, "the instance is not idle", func(s *api.Status) bool {
		for _, g := range s.GPUs {
			if g.MIG != nil && len(g.MIG.Instances) == 1 && g.MIG.Instances[0].RemovedAt != nil {
				return true
			}
		}
		return false
	})
	before := writes(t, n)
	if out := run(t, n, "-t", "red", "--kind", "mig:2g.10gb", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"); strings.TrimSpace(
		out,
	) != l.Devices[0] {
		t.Errorf("the next lease has %s, not the idle %s", out, l.Devices[0])
	}
	if got := writes(t, n); got != before {
		t.Errorf("%d writes for a lease on an instance that was there", got-before)
	}
	// Without a grant no instance is created.
	if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--kind", "mig:2g.10gb", "--", "true"); r.Code != 125 ||
		!strings.Contains(r.Err, "half") {
		t.Errorf("without a grant run exits with %d: %s", r.Code, r.Err)
	}
	// An idle instance is destroyed at once when a request needs its placement.
	run(t, n, "-t", "red", "--grant", "whole", "--", "true")
	run(t, n, "-t", "red", "--grant", "whole", "--", "true")
	two, _ := runOnDemand(t, n, "red", "whole", "sleep", "60")
	other, _ := runOnDemand(t, n, "red", "whole", "sleep", "60")
	if got := withoutPlaces(onGPU(truth(t, n), 0)); !strings.Contains(got, "profile 0") || strings.Contains(got, ";") {
		t.Errorf("GPU 0 is partitioned as %s", got)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--", "true"); r.Code != 125 ||
		!strings.Contains(r.Err, "no capacity for another 3g.20gb") {
		t.Errorf("a full node refuses with %d: %s", r.Code, r.Err)
	}
	for _, j := range []*harness.Job{two, other} {
		j.Kill()
		awaitEnd(t, j)
	}
	apply(t, n, ondemand("1s", "0", "1"))
	awaitTruth(t, n, "idle instances are not destroyed", empty)
	explained(t, awaitChange(t, n), "at the end")

	// An instance that is created again at the same placement has the same UUID and another generation.
	first, a := runOnDemand(t, n, "red", "whole", "sleep", "60")
	one := leaseByID(awaitChange(t, n), a)
	first.Kill()
	awaitTruth(t, n, "the instance is not destroyed", empty)
	_, b := runOnDemand(t, n, "red", "whole", "sleep", "60")
	again := leaseByID(awaitChange(t, n), b)
	if one == nil || again == nil || one.Devices[0] != again.Devices[0] || one.InstanceGeneration == again.InstanceGeneration {
		t.Errorf("first %+v, then %+v", one, again)
	}
}

// Many concurrent requests of two tenants, more than fit: each is served, and no two share an instance.
func TestManyOnDemandAtOnce(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := unhurried(t, slow)
	apply(t, n, ondemand("1s", "0", "1"))
	var jobs []*harness.Job
	for i := range 12 {
		tenant, grant := "red", []string{"small", "cut", "whole"}[i%3]
		if i%4 == 3 {
			tenant, grant = "blue", "half"
		}
		job, err := n.Run("-q", "-t", tenant, "--grant", grant, "--wait", "--", "sh", "-c", "echo =$CUDA_VISIBLE_DEVICES=; sleep 0.2")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		jobs = append(jobs, job)
	}
	for i, job := range jobs {
		if code := awaitEnd(t, job); code != 0 || !strings.Contains(job.Output(), "=MIG-") {
			t.Errorf("job %d exits with %d: %s", i, code, job.Output())
		}
	}
	awaitTruth(t, n, "idle instances are not destroyed", empty)
	explained(t, awaitChange(t, n), "at the end")
}

// If no instance can be created the GPU is held, and the request is placed on another GPU or refused. There are no endless
// retries.
func TestCreationFails(t *testing.T) {
	t.Parallel()
	n := unhurried(t, quick)
	apply(t, n, ondemand("1h", "0", "1"))
	if err := n.Ctl(soon(t), nil, "fault", "add", "DeviceCreateGpuInstance*", "fail", "--gpu", "0", "--times", "-1"); err != nil {
		t.Fatal(err)
	}
	run(t, n, "-t", "red", "--grant", "whole", "--", "true") // Finally on GPU 1.
	s := awaitChange(t, n)
	if s.GPUs[0].State != "held" || s.GPUs[1].State != "ok" {
		t.Errorf("GPU 0 is %s, GPU 1 is %s: %s", s.GPUs[0].State, s.GPUs[1].State, s.GPUs[0].Reason)
	}
	if err := n.Ctl(soon(t), nil, "fault", "add", "DeviceCreateGpuInstance*", "fail", "--gpu", "1", "--times", "-1"); err != nil {
		t.Fatal(err)
	}
	r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--", "true")
	if r.Code != 125 || !strings.Contains(r.Err, "held") {
		t.Errorf("without a GPU left run exits with %d: %s", r.Code, r.Err)
	}
	if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
		t.Fatal(err)
	}
	for _, g := range []string{"0", "1"} {
		if r := retryGPU(t, n, g); r.Code != 0 {
			t.Errorf("gpu retry %s exits with %d: %s", g, r.Code, r.Err)
		}
	}
	run(t, n, "-t", "blue", "--", "true")
	explained(t, awaitChange(t, n), "at the end")
}

// The daemon is killed at every fault point while it destroys an idle instance and creates another. The waiting request gets
// its instance, and no unexplained instance is left.
func TestKilledWhileCreating(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	binaries := buildWithFaults(t)
	n := newNode(t, quick)
	n.Bin = binaries
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, ondemand("1h", "0"))
	kills := 0
	for k := 1; ; k += enumeration.Stride(3) {
		// The small idle instance blocks the large one, and vice versa.
		run(t, n, "-t", "red", "--grant", "small", "--wait", "--", "true")
		where := fmt.Sprintf("kill %d", k)
		n.StopDaemon()
		n.Env = []string{fmt.Sprintf("GPUSHARE_FAULT=engine.*:kill@%d", k)}
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		job, err := n.Run("-q", "-t", "red", "--grant", "whole", "--wait", "--", "true")
		if err != nil {
			t.Fatal(err)
		}
		died := false
		select {
		case <-n.DaemonDone():
			died = true
			kills++
			where += " (" + lastFault(n) + ")"
			n.Env = nil
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatalf("%s: the daemon does not start again: %v", where, err)
			}
		case <-job.Done():
		}
		if code := awaitEnd(t, job); code != 0 {
			t.Errorf("%s: the job exits with %d: %s", where, code, job.Output())
		}
		s := awaitChange(t, n)
		explained(t, s, where)
		if got := withoutPlaces(truth(t, n)); got != "GPU 0: profile 0" {
			t.Errorf("%s: the GPU is partitioned as %s", where, got)
		}
		if t.Failed() {
			t.Fatal(daemonLog(n))
		}
		if !died {
			break
		}
	}
	if kills == 0 {
		t.Error("no kill happened")
	}
	t.Logf("%d kills", kills)
	n.Env = nil
}

// foreign is a node with instances that gpushare did not create.
const foreign = `driver: "580"
gpus:
  - {model: A100-SXM4-40GB, mig: true, layout: ["3g.20gb@4", "1g.5gb@0"]}
`

// Foreign instances are reported, named when they block a request, and only changed by a command of an administrator.
func TestImportAndRemoveInstances(t *testing.T) {
	t.Parallel()
	n := unhurried(t, foreign)
	spec := ondemand("1h", "0")
	apply(t, n, spec)
	old := truth(t, n)
	var three, other *api.InstanceStatus
	s := awaitChange(t, n)
	for i := range s.GPUs[0].MIG.Instances {
		in := &s.GPUs[0].MIG.Instances[i]
		if !in.Foreign {
			t.Errorf("%s is listed as managed", in.Profile)
		}
		if in.Profile == "3g.20gb" {
			three = in
		} else {
			other = in
		}
	}
	at := func(in *api.InstanceStatus) string { return fmt.Sprint(in.Placement.Start) }
	if r := n.CLI(soon(t), "mig", "list"); strings.Count(r.Out, "foreign") != 2 {
		t.Errorf("mig list says\n%s", r.Out)
	}
	r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true")
	if r.Code != 125 || !strings.Contains(r.Err, "is in the way: it is not managed by gpushare") {
		t.Errorf("with foreign instances in the way run exits with %d: %s", r.Code, r.Err)
	}
	layout := replaced(t, spec, "{dynamic: true, keep: 1h}", "{layout: [7g.40gb]}")
	if r := n.CLIIn(soon(t), layout, "apply", "-f", "-"); r.Code != api.ExitInfeasible ||
		!strings.Contains(r.Err, "3g.20gb at "+at(three)) {
		t.Errorf("a layout that they block: exit code %d, %s", r.Code, r.Err)
	}
	for _, args := range [][]string{{"import", "0", at(three), "--check"}, {"remove", "0", at(other), "--check"}} {
		if r := n.CLI(soon(t), append([]string{"mig"}, args...)...); r.Code != 0 {
			t.Errorf("mig %v exits with %d: %s", args, r.Code, r.Err)
		}
	}
	if got := truth(t, n); got != old || writes(t, n) != 0 {
		t.Errorf("--check, and the node is partitioned as %s", got)
	}
	if r := n.CLI(soon(t), "mig", "import", "0", "7"); r.Code != api.ExitFailed || !strings.Contains(r.Err, "3g.20gb at "+at(three)) {
		t.Errorf("an import without instances exits with %d: %s", r.Code, r.Err)
	}

	if r := n.CLI(soon(t), "mig", "import", "0", at(three)); r.Code != 0 || !strings.Contains(r.Out, "gpushare manages them now") {
		t.Fatalf("mig import exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "mig", "import", "0", at(three)); r.Code != 0 || !strings.Contains(r.Out, "already") {
		t.Errorf("a second import exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	job, id := runOnDemand(t, n, "blue", "half", "sleep", "60")
	if l := leaseByID(awaitChange(t, n), id); l == nil || l.Devices[0] != three.UUIDs[0] || writes(t, n) != 0 {
		t.Errorf("the lease is %+v after %d writes, want one on %s", l, writes(t, n), three.UUIDs[0])
	}
	if r := n.CLI(soon(t), "mig", "remove", "0", at(three)); r.Code != api.ExitConflict || !strings.Contains(r.Err, id) {
		t.Errorf("removing what is in use exits with %d: %s", r.Code, r.Err)
	}
	job.Kill()
	awaitEnd(t, job)

	if r := n.CLI(soon(t), "mig", "remove", "0", at(other)); r.Code != 0 || !strings.Contains(r.Out, "destroy 1g.5gb at "+at(other)) {
		t.Errorf("mig remove exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	s = awaitChange(t, n)
	if got := s.GPUs[0].MIG.Instances; len(got) != 1 || got[0].Foreign || !got[0].Imported {
		t.Errorf("left are %+v", got)
	}
	explained(t, s, "after import and removal")
	if r := n.CLI(soon(t), "mig", "remove", "0", at(three)); r.Code != 0 {
		t.Errorf("mig remove of an imported one exits with %d: %s", r.Code, r.Err)
	}
	if got := truth(t, n); got != "" {
		t.Errorf("at the end there is %s", got)
	}
	run(t, n, "-t", "red", "--grant", "whole", "--", "true")
	if s := awaitChange(t, n); len(s.Node.Times) == 0 {
		t.Error("the duration of steps was not recorded")
	}
}
