package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// divided is a spec with instances that are split into compute instances.
const divided = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [1c.3g.20gb, 1c.3g.20gb, 1c.3g.20gb, 1g.5gb]}}
  - {select: {index: 1}, mode: mig, mig: {layout: [1c.3g.20gb, 2c.3g.20gb]}}
tenants:
  - name: red
    members: {users: [nobody]}
    grants:
      - {name: third, mig: 1c.3g.20gb, gpus: {index: 0}, max_leases: 4}
  - name: blue
    grants:
      - {name: half, mig: 3g.20gb, gpus: {index: 1}, max_leases: 3}
`

// leased starts a job of a lease and returns what CUDA sees in it.
func leased(t *testing.T, n *harness.Node, tenant, grant string) (job *harness.Job, id, devices string) {
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
		`echo "sees=$CUDA_VISIBLE_DEVICES=$GPUSHARE_LEASE="; exec sleep 100`,
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "sees="); err != nil {
		t.Fatalf("%v\n%s", err, daemonLog(n))
	}
	parts := strings.Split(job.Output(), "=")
	return job, parts[2], parts[1]
}

// computeOf are the compute instances of the first split instance on a GPU.
func computeOf(t *testing.T, s *api.Status, index int) *api.InstanceStatus {
	t.Helper()
	m := s.GPUs[index].MIG
	i := slices.IndexFunc(m.Instances, func(in api.InstanceStatus) bool { return len(in.Compute) > 0 })
	if i < 0 {
		t.Fatalf("GPU %d has no instance that is split: %+v", index, m.Instances)
	}
	return &m.Instances[i]
}

// A lease has one compute instance of an instance that is split: in its environment, and in the status.
func TestALeaseOfAComputeInstance(t *testing.T) {
	for _, driver := range []string{"580", "470"} {
		t.Run("driver "+driver, func(t *testing.T) {
			t.Parallel()
			n := start(t, strings.Replace(quick, `"580"`, `"`+driver+`"`, 1))
			apply(t, n, divided)
			all := computeOf(t, status(t, n), 0).Compute
			if len(all) != 3 {
				t.Fatalf("the instance has %+v", all)
			}
			seen := map[string]string{} // the lease of each device
			var last *harness.Job
			for range 3 {
				job, id, devices := leased(t, n, "red", "third")
				if !slices.ContainsFunc(all, func(c api.ComputeStatus) bool { return c.UUID == devices && c.Profile == "1c.3g.20gb" }) ||
					seen[devices] != "" {
					t.Errorf("a lease sees %q of %+v, and others have %v", devices, all, seen)
				}
				seen[devices], last = id, job
			}
			r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "third", "--", "true")
			if r.Code != 125 || !strings.Contains(r.Err, "no idle 1c.3g.20gb instance: 3 of 3 in use") {
				t.Errorf("a fourth lease: %d %s", r.Code, r.Err)
			}
			in := computeOf(t, status(t, n), 0)
			for _, c := range in.Compute {
				if c.Lease == "" || c.Lease != seen[c.UUID] || !slices.Contains(in.Leases, c.Lease) {
					t.Errorf("the status has %+v, the leases have %v", in, seen)
				}
			}
			for _, want := range []string{"3 of 3 compute instances leased", "1c.3g.20gb"} {
				if out := n.CLI(soon(t), "status").Out + n.CLI(soon(t), "mig", "list").Out; !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			last.Stop()
			if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "third", "--wait=30s", "--", "true"); r.Code != 0 {
				t.Errorf("after the end of one of them: %d %s", r.Code, r.Err)
			}

			// A grant of the instance has one compute instance of it, the largest first.
			_, _, first := leased(t, n, "blue", "half")
			_, _, second := leased(t, n, "blue", "half")
			if strings.Contains(first+second, ",") || first == second {
				t.Errorf("two leases of a split instance see %q and %q", first, second)
			}
			if i := slices.IndexFunc(
				computeOf(t, status(t, n), 1).Compute,
				func(c api.ComputeStatus) bool { return c.UUID == first && c.Profile == "2c.3g.20gb" },
			); i < 0 {
				t.Errorf("the first lease has %q of %+v", first, computeOf(t, status(t, n), 1).Compute)
			}
		})
	}
}

// The leases and what they have are the same after the daemon was killed.
func TestComputeInstancesAfterARestart(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, divided)
	_, id, devices := leased(t, n, "red", "third")
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if l := leaseByID(status(t, n), id); l == nil || !slices.Equal(l.Devices, []string{devices}) {
		t.Fatalf("the lease is %+v, it has %s", l, devices)
	}
	for range 2 {
		if _, _, other := leased(t, n, "red", "third"); other == devices {
			t.Errorf("another lease has its compute instance %s", devices)
		}
	}
}

// A lease opens the capability node of its own compute instance, and not those of the others.
func TestALeaseOpensItsOwnComputeInstance(t *testing.T) {
	t.Parallel()
	n := startWithDeviceNodes(t)
	apply(t, n, divided)
	_, _, has := leased(t, n, "red", "third")
	r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "third", "--", "sh", "-c", fmt.Sprintf(openNodes, n.Root()))
	if got := strings.Count(r.Out, "nvidia-caps/"); r.Code != 0 || got != 2 {
		t.Errorf("it opens %d capability nodes, the instance's and its own are 2: %s%s", got, r.Out, r.Err)
	}
	burn := append([]string{"run", "-q", "-t", "red", "--grant", "third", "--"}, n.Burn("--gpu", has, "--hold", "--seconds", "1")...)
	if r := n.CLI(soon(t), burn...); r.Code != 77 {
		t.Errorf("the compute instance of another lease: %d %s", r.Code, r.Err)
	}
}

// A process of no lease on a compute instance closes that one, and not its siblings.
func TestAnOccupiedComputeInstance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, divided)
	in := computeOf(t, status(t, n), 0)
	process := contextOn(t, n, games, "--gpu", in.Compute[0].UUID)
	who := fmt.Sprintf("pid %d (gpusim-burn) of games uses GPU 0", process.Process.Pid)
	awaitStatus(t, n, "no condition names the process", func(s *api.Status) bool { return hasCondition(s, "unattributed", who) })
	for range 2 {
		if _, _, devices := leased(t, n, "red", "third"); devices == in.Compute[0].UUID {
			t.Error("a lease has the compute instance that the process uses")
		}
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "third", "--", "true"); r.Code != 125 ||
		!strings.Contains(r.Err, "a process of no lease uses it") {
		t.Errorf("a third lease: %d %s", r.Code, r.Err)
	}
}

// On demand an instance is created and split for a grant that names a compute instance: the next leases get the others, and it is
// removed when none has one. A grant of the instance gets one of its own.
func TestComputeInstancesOnDemand(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {dynamic: true, keep: 1s}}
tenants:
  - name: red
    grants:
      - {name: third, mig: 1c.3g.20gb, max_leases: 4}
      - {name: whole, mig: 3g.20gb}
`)
	seen := map[string]bool{}
	var jobs []*harness.Job
	for range 3 {
		job, err := n.Run(
			"-q",
			"-t",
			"red",
			"--grant",
			"third",
			"--wait=1m",
			"--",
			"sh",
			"-c",
			`echo "sees=$CUDA_VISIBLE_DEVICES="; exec sleep 100`,
		)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		if err := job.AwaitLine(soon(t), "sees="); err != nil {
			t.Fatalf("%v\n%s", err, daemonLog(n))
		}
		seen[strings.Split(job.Output(), "=")[1]] = true
		jobs = append(jobs, job)
	}
	if in := computeOf(t, status(t, n), 0); len(seen) != 3 || len(in.Leases) != 3 || len(status(t, n).GPUs[0].MIG.Instances) != 1 {
		t.Errorf("three leases see %v, the instances are %+v", seen, status(t, n).GPUs[0].MIG.Instances)
	}
	if r := n.CLI(
		soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--wait=1m", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES",
	); r.Code != 0 ||
		seen[strings.TrimSpace(r.Out)] {
		t.Errorf("a lease of an instance: %d %s%s", r.Code, r.Out, r.Err)
	}
	jobs[0].Stop()
	jobs[1].Stop()
	awaitStatus(t, n, "the instance of the third lease is not the only one left", func(s *api.Status) bool {
		return len(s.GPUs[0].MIG.Instances) == 1 && len(s.GPUs[0].MIG.Instances[0].Leases) == 1
	})
	jobs[2].Stop()
	awaitTruth(t, n, "an instance that no lease has stays", empty)
}
