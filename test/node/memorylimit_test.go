package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// r615 is a node whose driver limits GPU memory by cgroup.
const r615 = `driver: "615"
memory_limits: {accounting: misc, unset: none}
gpus:
  - {model: A100-SXM4-40GB, count: 2}
`

// limited is a spec for it: nothing but the driver stops a lease that uses too much.
const limited = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: timeslice}
tenants:
  - name: red
    grants:
      - {name: part, timeslice: {share: 50%, gpu_memory: 8GiB}}
  - name: blue
    grants:
      - {name: part, timeslice: {share: 50%, gpu_memory: 8GiB}}
`

// memoryLimits are the limits of one virtual GPU, by cgroup.
func memoryLimits(t *testing.T, n *harness.Node) map[string]gpusim.MemoryLimitView {
	t.Helper()
	var s struct {
		GPUs []struct {
			MemoryLimits []gpusim.MemoryLimitView `json:"memory_limits"`
			Leaked       uint64                   `json:"leaked"`
		} `json:"gpus"`
	}
	if err := n.Ctl(soon(t), &s, "status"); err != nil {
		t.Fatal(err)
	}
	out := map[string]gpusim.MemoryLimitView{}
	for _, l := range s.GPUs[0].MemoryLimits {
		out[l.Cgroup] = l
		if l.Minimum != 0 {
			t.Errorf("%s has a reservation: %+v", l.Cgroup, l)
		}
	}
	if s.GPUs[0].Leaked != 0 {
		t.Errorf("%d bytes of reservations are left", s.GPUs[0].Leaked)
	}
	return out
}

// limitOf is the true limit of a cgroup, in bytes; 0 if there is none.
func limitOf(t *testing.T, n *harness.Node, cg string) uint64 {
	t.Helper()
	return memoryLimits(t, n)[filepath.Join(unified(t), cg)].Hard
}

// onCgroups skips the test where leases have no cgroups.
func onCgroups(t *testing.T, n *harness.Node) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("limits of cgroups need root")
	}
	if s := status(t, n); !strings.HasPrefix(s.Node.Adapter, "cgroupfs") {
		t.Skipf("leases have no cgroups here: %s", s.Node.Adapter)
	}
}

// nvml is a second client of the library, as an administrator's tool is.
func nvml(t *testing.T, n *harness.Node) (*worker.Client, gpu.UUID) {
	t.Helper()
	run, err := os.MkdirTemp("", "nvml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := worker.New(worker.Options{
		Command: []string{filepath.Join(n.Bin, "gpushare-nvml")}, Env: []string{"GPUSIM_ROOT=" + n.Root()}, RunDir: run,
		Library: filepath.Join(n.Root(), "usr/lib/libnvidia-ml.so.1"), HostRoot: n.Root(), Launcher: worker.Exec{Stderr: os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = os.RemoveAll(run)
	})
	info, err := c.Node(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return c, info.GPUs[0].UUID
}

// awaitBackend waits until the limit of a lease is enforced by a backend.
func awaitBackend(t *testing.T, n *harness.Node, id, backend string, hard bool) *api.Lease {
	t.Helper()
	s := awaitStatus(t, n, fmt.Sprintf("lease %s is not limited by %s (hard: %v)", id, backend, hard), func(s *api.Status) bool {
		l := leaseByID(s, id)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Backend == backend && l.GPUMemory.Hard == hard
	})
	return leaseByID(s, id)
}

// TestDriverLimitsGPUMemory: a lease over its limit gets out of memory at the allocation and its neighbour nothing, also while
// the daemon is dead. The limit is read back, not set again, by the next daemon, and is removed in the end.
func TestDriverLimitsGPUMemory(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for _, c := range []struct{ name, node string }{
		{"inside the driver", r615},
		{"inside the driver, unset fails", replaced(t, r615, "unset: none", "unset: fails")},
		{"dmem", replaced(t, r615, "accounting: misc", "accounting: dmem, dmem_files: every")},
		{"dmem, unset fails", replaced(t, r615, "accounting: misc, unset: none", "accounting: dmem, dmem_files: every, unset: fails")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := start(t, c.node)
			onCgroups(t, n)
			apply(t, n, limited)
			neighbour, blue := begin(t, n, "blue", "part", n.Burn("--memory", "6GiB", "--hold")...)
			if err := neighbour.AwaitLine(soon(t), "ready"); err != nil {
				t.Fatal(err)
			}
			l := awaitBackend(t, n, blue, "driver", true)
			if !strings.Contains(l.GPUMemory.Reason, "read back") {
				t.Errorf("the reason is %q", l.GPUMemory.Reason)
			}
			if got := limitOf(t, n, l.Isolation.Cgroup); got != 8<<30 {
				t.Errorf("the limit of its cgroup is %d", got)
			}
			if got := limitOf(t, n, filepath.Dir(filepath.Dir(l.Isolation.Cgroup))); got != 8<<30 {
				t.Errorf("the limit of the slice of the grant is %d", got)
			}
			if r := n.CLI(soon(t), "explain", "blue"); !strings.Contains(r.Out, "8 GiB on GPU 0") ||
				!strings.Contains(r.Out, "the driver refuses allocations above the limit") {
				t.Errorf("explain of the tenant prints:\n%s%s", r.Out, r.Err)
			}
			if r := n.CLI(soon(t), "explain", blue); !strings.Contains(r.Out, "the driver refuses allocations above the limit") {
				t.Errorf("explain prints:\n%s%s", r.Out, r.Err)
			}

			// 512 MiB less than the limit: the context counts too.
			greedy := n.CLI(soon(t), append([]string{"run", "-t", "red", "--"}, n.Burn("--memory", "9GiB", "--hold")...)...)
			if greedy.Code != 2 || !strings.Contains(greedy.Err, "out of memory") {
				t.Errorf("the lease over its limit exits with %d: %s%s", greedy.Code, greedy.Out, greedy.Err)
			}

			before := writes(t, n)
			client := n.Client()
			defer client.Close()
			for range 3 {
				if err := client.Reload(soon(t)); err != nil {
					t.Fatal(err)
				}
			}
			if got := writes(t, n); got != before {
				t.Errorf("converging again made %d writes", got-before)
			}

			growing, red := begin(t, n, "red", "part", n.Burn("--memory", "1GiB", "--grow", "4GiB/s", "--hold")...)
			n.KillDaemon()
			select {
			case <-growing.Done():
			case <-soon(t).Done():
				t.Fatal("without the daemon the lease grows above its limit")
			}
			if growing.Code() != 2 {
				t.Errorf("without the daemon the lease over its limit exits with %d: %s", growing.Code(), growing.Output())
			}
			before = writes(t, n)
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
			awaitBackend(t, n, blue, "driver", true)
			if leaseByID(status(t, n), red) != nil {
				awaitStatus(t, n, "the lease that ended is listed", func(s *api.Status) bool { return leaseByID(s, red) == nil })
			}
			if got := writes(t, n); got != before {
				t.Errorf("the daemon made %d writes after its restart", got-before)
			}

			neighbour.Stop()
			if code := neighbour.Code(); code != 143 {
				t.Errorf("the neighbour exits with %d: %s", code, neighbour.Output())
			}
			awaitStatus(t, n, "the neighbour's lease is listed", func(s *api.Status) bool { return leaseByID(s, blue) == nil })
			if got := limitOf(t, n, l.Isolation.Cgroup); got != 0 {
				t.Errorf("after its lease the cgroup has a limit of %d", got)
			}
			apply(t, n, replaced(t, replaced(t, limited, ", gpu_memory: 8GiB", ""), ", gpu_memory: 8GiB", ""))
			if got := limitOf(t, n, filepath.Dir(filepath.Dir(l.Isolation.Cgroup))); got != 0 {
				t.Errorf("a grant without a limit has a limit of %d", got)
			}
		})
	}
}

// TestDriverLimitIsCorrected: a limit that was changed from outside is corrected once, and a limit that the spec changes is
// changed while the lease runs.
func TestDriverLimitIsCorrected(t *testing.T) {
	t.Parallel()
	n := start(t, r615)
	onCgroups(t, n)
	apply(t, n, limited)
	_, id := begin(t, n, "red", "part", "sleep", "60")
	leaf := awaitBackend(t, n, id, "driver", true).Isolation.Cgroup
	dir := filepath.Join(unified(t), leaf)
	c, uuid := nvml(t, n)
	client := n.Client()
	defer client.Close()
	for _, hard := range []*uint64{nil, new(uint64(30 << 30))} {
		if err := c.SetMemoryLimit(soon(t), uuid, dir, hard); err != nil {
			t.Fatal(err)
		}
		err := harness.Await(soon(t), 50*time.Millisecond, "the limit is not corrected", func() (bool, error) {
			if err := client.Reload(soon(t)); err != nil {
				return false, err
			}
			return limitOf(t, n, leaf) == 8<<30, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	counters, err := client.Counters(soon(t))
	if err != nil || counters["drift.corrected"] != 2 {
		t.Errorf("%d differences were corrected, want 2; %v", counters["drift.corrected"], err)
	}
	apply(t, n, replaced(t, limited, "gpu_memory: 8GiB", "gpu_memory: 10GiB"))
	for _, cg := range []string{leaf, filepath.Dir(filepath.Dir(leaf))} {
		if got := limitOf(t, n, cg); got != 10<<30 {
			t.Errorf("%s has a limit of %d after the spec was changed", cg, got)
		}
	}
	if l := leaseByID(status(t, n), id); l == nil || l.GPUMemory.Backend != "driver" || l.GPUMemory.Limit != 10<<30 {
		t.Errorf("the lease is %+v", l)
	}
}

// TestDriverLimitsAttachedCgroup: a cgroup of another manager is limited while its lease lasts.
func TestDriverLimitsAttachedCgroup(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, r615)
	onCgroups(t, n)
	apply(t, n, limited)
	p := startOutside(t, n, 0, "sleep", "60")
	enter(t, dir, p.pid())
	id := attach(t, n, "--cgroup", path, "-t", "red", "--grant", "part")
	awaitBackend(t, n, id, "driver", true)
	if got := limitOf(t, n, path); got != 8<<30 {
		t.Errorf("its limit is %d", got)
	}
	burn := startOutside(
		t, n, 0, "sh", "-c",
		fmt.Sprintf("echo $$ >%s/cgroup.procs; exec %s", dir, strings.Join(n.Burn("--gpu", "0", "--memory", "9GiB", "--hold"), " ")),
	)
	select {
	case <-burn.done:
	case <-soon(t).Done():
		t.Fatal("it is not refused")
	}
	if code := burn.cmd.ProcessState.ExitCode(); code != 2 {
		t.Errorf("a process over the limit exits with %d", code)
	}
	if r := n.CLI(soon(t), "lease", "release", id); r.Code != 0 {
		t.Fatalf("%s%s", r.Out, r.Err)
	}
	if got := limitOf(t, n, path); got != 0 {
		t.Errorf("after the release its limit is %d", got)
	}
	id = attach(t, n, "--cgroup", path, "-t", "red", "--grant", "part")
	awaitBackend(t, n, id, "driver", true)
	if r := n.CLI(soon(t), "unmanage", "--force"); r.Code != 0 ||
		!strings.Contains(r.Out, "remove the GPU-memory limits of 1 attached cgroups") {
		t.Errorf("unmanage exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if got := memoryLimits(t, n); len(got) != 0 {
		t.Errorf("on an unmanaged node there are limits: %+v", got)
	}
	if !p.living() {
		t.Error("the process was stopped")
	}
}

// TestGrantThatAcceptsOnlyAHardLimit is refused where the driver has none, and gets one lease for each GPU where the driver limits
// each lease alone.
func TestGrantThatAcceptsOnlyAHardLimit(t *testing.T) {
	t.Parallel()
	hard := replaced(t, limited, "gpu_memory: 8GiB}", "gpu_memory: 8GiB}, accept: hard")
	t.Run("older driver", func(t *testing.T) {
		t.Parallel()
		n := start(t, quick)
		onCgroups(t, n)
		hard := replaced(t, hard, "index: 0", "index: 2")
		r := n.CLIIn(soon(t), hard, "apply", "-f", "-")
		if r.Code != api.ExitInfeasible || !strings.Contains(r.Err, "the driver is older than R615") ||
			!strings.Contains(r.Err, "accept: best-effort") {
			t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
		apply(t, n, replaced(t, hard, "accept: hard", "accept: best-effort"))
		_, id := begin(t, n, "red", "part", "sleep", "60")
		l := awaitBackend(t, n, id, "reactive", false)
		if !strings.Contains(l.GPUMemory.Reason, "no limit by the driver: the driver is older than R615") {
			t.Errorf("the reason is %q", l.GPUMemory.Reason)
		}
	})
	t.Run("the driver does not account", func(t *testing.T) {
		t.Parallel()
		n := start(t, replaced(t, r615, "accounting: misc", "accounting: \"off\""))
		onCgroups(t, n)
		apply(t, n, hard) // It is found out with the first slice.
		r := n.CLI(soon(t), "run", "-t", "red", "--", "true")
		if r.Code != 125 || !strings.Contains(r.Err, "the driver does not account GPU memory by cgroup") {
			t.Errorf("run exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
		if r := n.CLI(soon(t), "run", "-t", "blue", "--", "true"); r.Code != 0 {
			t.Errorf("the other tenant's run exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
		if r := n.CLIIn(soon(t), replaced(t, hard, "share: 50%", "share: 40%"), "apply", "-f", "-"); r.Code != api.ExitInfeasible {
			t.Errorf("the next apply exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
	})
	t.Run("each lease alone", func(t *testing.T) {
		t.Parallel()
		n := start(t, r615)
		onCgroups(t, n)
		apply(t, n, hard)
		_, id := begin(t, n, "red", "part", "sleep", "60")
		awaitBackend(t, n, id, "driver", true)
		r := n.CLI(soon(t), "run", "-t", "red", "--", "true")
		if r.Code == 0 || !strings.Contains(r.Err, "limits each lease alone") {
			t.Errorf("a second run exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
		// Of a grant that accepts less both leases run, and the limit is not called hard.
		_, first := begin(t, n, "blue", "part", "sleep", "60")
		awaitBackend(t, n, first, "driver", true)
		_, second := begin(t, n, "blue", "part", "sleep", "60")
		for _, id := range []string{first, second} {
			if l := awaitBackend(t, n, id, "driver", false); !strings.Contains(l.GPUMemory.Reason, "each of the grant's 2 leases alone") {
				t.Errorf("the reason is %q", l.GPUMemory.Reason)
			}
		}
	})
}

// TestFailedDriverLimitIsNotShown: whichever call fails while a lease starts, a limit that status shows is there; when the calls
// succeed again the limit is set.
func TestFailedDriverLimitIsNotShown(t *testing.T) {
	t.Parallel()
	n := start(t, r615)
	onCgroups(t, n)
	apply(t, n, limited)
	client := n.Client()
	defer client.Close()
	failed := 0
	for nth := 1; nth <= 8; nth++ {
		for _, after := range []bool{false, true} {
			args := []string{"fault", "add", "Device*MemoryLimits", "fail", "--nth", fmt.Sprint(nth), "--times", "2"}
			if after {
				args = append(args, "--after")
			}
			if err := n.Ctl(soon(t), nil, args...); err != nil {
				t.Fatal(err)
			}
			job, id := begin(t, n, "red", "part", "sleep", "60")
			l := leaseByID(status(t, n), id)
			switch is := limitOf(t, n, l.Isolation.Cgroup); {
			case l.GPUMemory.Backend != "driver":
				failed++
				if l.GPUMemory.Hard || !strings.Contains(l.GPUMemory.Reason, "no limit by the driver") {
					t.Errorf("call %d: %+v", nth, l.GPUMemory)
				}
			case is != 8<<30:
				t.Errorf("call %d: status shows a limit that is not there: %d, %+v", nth, is, l.GPUMemory)
			}
			if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
				t.Fatal(err)
			}
			err := harness.Await(soon(t), 20*time.Millisecond, "the limit is not set again", func() (bool, error) {
				if err := client.Reload(soon(t)); err != nil {
					return false, err
				}
				l := leaseByID(status(t, n), id)
				return l.GPUMemory.Backend == "driver" && limitOf(t, n, l.Isolation.Cgroup) == 8<<30, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			job.Stop()
			awaitStatus(t, n, "the lease is listed", func(s *api.Status) bool { return leaseByID(s, id) == nil })
		}
	}
	if failed == 0 {
		t.Error("no fault hit a lease")
	}
	if kinds := slices.DeleteFunc(status(t, n).Node.Conditions, func(c api.Condition) bool { return c.Kind != "gpu-memory" }); len(
		kinds,
	) != 0 {
		t.Errorf("conditions remain: %+v", kinds)
	}
}

// TestHangingDriverLimit: a GPU that does not answer while a lease starts delays the lease by the timeout of one call, and no limit
// is shown.
func TestHangingDriverLimit(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for _, call := range []string{"DeviceSetMemoryLimits", "DeviceGetMemoryLimits"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			n := startHasty(t, r615)
			onCgroups(t, n)
			apply(t, n, limited)
			if err := n.Ctl(soon(t), nil, "fault", "add", call, "hang", "--times", "-1"); err != nil {
				t.Fatal(err)
			}
			_, id := begin(t, n, "red", "part", "sleep", "60")
			if l := leaseByID(status(t, n), id); l.GPUMemory.Backend == "driver" || l.GPUMemory.Hard {
				t.Errorf("a limit is shown: %+v", l.GPUMemory)
			}
			if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
				t.Fatal(err)
			}
			if r := retryGPU(t, n, "0"); r.Code != 0 {
				t.Fatalf("%s%s", r.Out, r.Err)
			}
			l := awaitBackend(t, n, id, "driver", true)
			if got := limitOf(t, n, l.Isolation.Cgroup); got != 8<<30 {
				t.Errorf("its limit is %d", got)
			}
		})
	}
}
