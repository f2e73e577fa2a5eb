package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

const sharedSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mps}
  - {select: {index: 1}, mode: timeslice}
tenants:
  - name: red
    grants:
      - {name: small, mps: {share: 20%, gpu_memory: 1GiB}}
      - {name: large, mps: {share: 50%, gpu_memory: 2GiB}}
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}
`

func sharedNode(driver string) string {
	return fmt.Sprintf("driver: %q\ngpus:\n  - {model: A100-SXM4-40GB}\n  - {model: A100-SXM4-40GB}\n", driver)
}

// mpsQuery sends commands to the control daemon of a node, through its pipe directory p or that of its tenants, t.
func mpsQuery(t *testing.T, n *harness.Node, pipe, commands string) string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(n.Dir, "run/mps/*", pipe))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("pipe directories %q, %v", dirs, err)
	}
	cmd := exec.CommandContext(soon(t), filepath.Join(n.Root(), "usr/bin/nvidia-cuda-mps-control"))
	cmd.Env = append(os.Environ(), "GPUSIM_ROOT="+n.Root(), "CUDA_MPS_PIPE_DIRECTORY="+dirs[0])
	cmd.Stdin = strings.NewReader(commands + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", commands, err, out)
	}
	return strings.TrimSpace(string(out))
}

const mpsDefaults = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0"

// The largest share and memory of the grants are what the control daemon gives to a client that asks for nothing; another share is a
// change without a restart, and the plan says whom it reaches; what a tenant sets on a driver that lets it is set again, and the event
// names who was connected.
func TestMPSLimits(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for _, driver := range []string{"535", "580"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			n := start(t, sharedNode(driver))
			apply(t, n, sharedSpec)
			events := listen(t, n)
			if got := mpsQuery(t, n, "p", mpsDefaults); got != "50.0\n2G" {
				t.Fatalf("the defaults are %q", got)
			}
			pid := status(t, n).GPUs[0].MPS.PID
			bare := []string{"env", "-u", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "-u", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}
			job, id := begin(t, n, "red", "small", append(bare, n.Burn("--memory", "1500MiB", "--hold")...)...)
			if err := job.AwaitLine(soon(t), "ready"); err != nil {
				t.Fatal(err)
			}
			_, greedy := begin(t, n, "red", "small", append(bare, n.Burn("--memory", "3GiB", "--hold")...)...)
			awaitStatus(
				t, n, "a client that takes more than any grant has", func(s *api.Status) bool { return leaseByID(s, greedy) == nil },
			)

			larger := replaced(t, sharedSpec, "share: 50%", "share: 60%")
			check := n.CLIIn(soon(t), larger, "apply", "--check", "-f", "-")
			if want := "threads of MPS clients 50% → 60%: new clients"; !strings.Contains(check.Out, want) ||
				strings.Contains(check.Out, "restart MPS") {
				t.Errorf("the plan does not say %q: %s%s", want, check.Out, check.Err)
			}
			apply(t, n, larger)
			server := mpsQuery(t, n, "p", "get_server_list")
			if got := mpsQuery(t, n, "p", mpsDefaults+"\nget_active_thread_percentage "+server); got != "60.0\n2G\n60.0" {
				t.Errorf("after the change the defaults and the server's share are %q", got)
			}
			if s := status(t, n); s.GPUs[0].MPS.PID != pid || leaseByID(s, id) == nil {
				t.Errorf("after the change: %+v", s.GPUs[0].MPS)
			}

			mpsQuery(t, n, "t", "set_default_active_thread_percentage 100\nset_default_device_pinned_mem_limit 0 0")
			if err := n.Client().Reload(soon(t)); err != nil {
				t.Fatal(err)
			}
			// Where MPS answers late, the next pass of the converge loop corrects them.
			err := harness.Await(soon(t), 20*time.Millisecond, "the defaults stay those of a tenant's commands", func() (bool, error) {
				return mpsQuery(t, n, "p", mpsDefaults) == "60.0\n2G", nil
			})
			if err != nil {
				t.Error(err)
			}
			if driver != "535" {
				return
			}
			err = harness.Await(soon(t), 20*time.Millisecond, "no event names the client", func() (bool, error) {
				return slices.ContainsFunc(events.of("drift.corrected"), func(m string) bool {
					return strings.Contains(m, "its default thread percentage is 100, it should be 60") && strings.Contains(m, " of "+id)
				}), nil
			})
			if err != nil {
				t.Errorf("%v: %q", err, events.of("drift.corrected"))
			}
		})
	}
}

// The control daemon and its servers are in a cgroup of their own, so that what ends all processes in the cgroup of gpushared does not
// reach them, and may open as many files as NVIDIA advises. The next run of gpushared finds them.
func TestMPSHasItsOwnCgroup(t *testing.T) {
	t.Parallel()
	n := start(t, sharedNode("580"))
	if !strings.Contains(status(t, n).Node.Adapter, "cgroupfs") {
		t.Skip("cgroups need root and a cgroup v2 hierarchy")
	}
	apply(t, n, sharedSpec)
	job, _ := begin(t, n, "red", "small", n.Burn("--hold")...)
	if err := job.AwaitLine(soon(t), "ready"); err != nil {
		t.Fatal(err)
	}
	pids := []int{status(t, n).GPUs[0].MPS.PID}
	var server int
	if _, err := fmt.Sscan(mpsQuery(t, n, "p", "get_server_list"), &server); err != nil {
		t.Fatal(err)
	}
	pids = append(pids, server)
	own, err := procfs.Cgroup(n.DaemonPID())
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		cg, err := procfs.Cgroup(pid)
		if err != nil || cg == own || !strings.HasPrefix(cg, "/"+n.Subtree()+"/services/gpushare-mps-") {
			t.Errorf("pid %d is in %s (%v), the daemon in %s", pid, cg, err, own)
		}
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		if _, rest, ok := strings.Cut(string(limits), "Max open files"); err != nil || !ok ||
			strings.Fields(rest)[1] != "16384" { // The stand-in, a Go program, changes its soft limit.
			t.Errorf("the limits of pid %d: %s%v", pid, limits, err)
		}
	}
	n.StopDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	s := awaitStatus(t, n, "MPS runs", func(s *api.Status) bool { return s.GPUs[0].MPS != nil && s.GPUs[0].MPS.State == "running" })
	if got := s.GPUs[0].MPS.PID; got != pids[0] || mpsQuery(t, n, "p", "get_server_list") != fmt.Sprint(server) {
		t.Errorf("after a restart of the daemon the control daemon is pid %d, it was %d", got, pids[0])
	}
	job.Stop()
	awaitEnd(t, job)
	apply(t, n, "version: v1\nnode: {enforce: on}\n")
	if h, err := cgroup.FindHierarchy(); err != nil || h.Exists("/"+n.Subtree()+"/services") || !h.Exists("/"+n.Subtree()) {
		t.Errorf("after the end of MPS the cgroup of its services is left (%v)", err)
	}
}
