package node

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// eightMPS is a spec with MPS on eight GPUs, four of them with clients and four with the compute mode of bypass: deny.
const eightMPS = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [0, 1, 2, 3]}, mode: mps}
  - {select: {index: [4, 5, 6, 7]}, mode: mps, mps: {bypass: deny}}
tenants:
  - name: red
    grants:
      - {name: on0, gpus: {index: 0}, mps: {share: 30%, gpu_memory: 2GiB}}
      - {name: on1, gpus: {index: 1}, mps: {share: 30%, gpu_memory: 2GiB}}
      - {name: on4, gpus: {index: 4}, mps: {share: 30%, gpu_memory: 2GiB}}
      - {name: on5, gpus: {index: 5}, mps: {share: 30%, gpu_memory: 2GiB}}
`

// The rounds of TestMPSSurvivesRandomFaults on each of two nodes, and those of a sample, on one node.
const (
	randomRounds  = 150
	sampledRounds = 8
	// convergedIn is what the product promises; it is compared only where no other test runs.
	convergedIn = 10 * time.Second
)

// randomFaults is a node with eight control daemons, and what is expected of it.
type randomFaults struct {
	t      *testing.T
	n      *harness.Node
	random *rand.Rand
	jobs   map[int]*harness.Job // clients by GPU
	pids   [8]int               // of the control daemons
	next   int                  // GPU whose control daemon is hit next: in turn, because failures in a row delay the next start
}

// The control daemon, the server or the client of a GPU, the worker or the daemon is killed, or stopped for a while, in a random order
// with a seed that is printed. Each time all eight control daemons run again with their limits, those that were not hit are the same
// processes, and in the end nothing is left.
func TestMPSSurvivesRandomFaults(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("GPUSHARE_SEED"), 10, 64); err == nil {
		seed = s
	}
	nodes, rounds := 2, randomRounds
	if enumeration.Sampled() {
		nodes, rounds = 1, sampledRounds
	}
	for i := range nodes {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			survivesRandomFaults(t, seed+uint64(i), rounds)
		})
	}
}

func survivesRandomFaults(t *testing.T, seed uint64, rounds int) {
	t.Logf("GPUSHARE_SEED=%d", seed)
	n := start(t, "driver: \"580\"\ngpus:\n  - {model: A100-SXM4-40GB, count: 8}\n")
	apply(t, n, eightMPS)
	f := &randomFaults{t: t, n: n, random: rand.New(rand.NewPCG(seed, 0)), jobs: map[int]*harness.Job{}}
	f.converged("after the apply", -1)
	var slowest time.Duration
	for round := range rounds {
		f.join()
		what, hit := f.hit()
		began := time.Now()
		f.converged(fmt.Sprintf("round %d: %s", round, what), hit)
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("%d rounds, the slowest in %s", rounds, slowest.Round(time.Millisecond))
	if !enumeration.Sampled() && slowest > convergedIn {
		t.Errorf("a round took %s, want at most %s", slowest, convergedIn)
	}
	for _, job := range f.jobs {
		job.Kill()
	}
	awaitStatus(t, n, "the leases do not end", func(s *api.Status) bool { return len(s.Leases) == 0 })
	apply(t, n, "version: v1\nnode: {enforce: on}\n")
	if left := f.processes(); len(left) != 0 {
		t.Errorf("processes are left: %q", left)
	}
	for _, pattern := range []string{"run/mps/*", "run/units/*.json", "state/mps/*"} { // The logs of units are kept.
		if left, err := filepath.Glob(filepath.Join(n.Dir, pattern)); err != nil || len(left) != 0 {
			t.Errorf("these are left: %q %v", left, err)
		}
	}
	if left := strings.Count(f.sockets(), "/mps/"); left != 0 {
		t.Errorf("%d sockets are left:\n%s", left, f.sockets())
	}
	f.computeModes(nil)
}

// join starts the clients that do not run.
func (f *randomFaults) join() {
	f.t.Helper()
	for _, g := range []int{0, 1, 4, 5} {
		if f.jobs[g] != nil {
			continue
		}
		job, _ := begin(f.t, f.n, "red", fmt.Sprintf("on%d", g), f.n.Burn("--hold")...)
		if err := job.AwaitLine(soon(f.t), "ready"); err != nil {
			f.t.Fatalf("GPU %d: %v: %s\n%s", g, err, job.Output(), daemonLog(f.n))
		}
		f.jobs[g] = job
	}
}

// leave ends the client of a GPU.
func (f *randomFaults) leave(g int) {
	if job := f.jobs[g]; job != nil {
		job.Kill()
		delete(f.jobs, g)
	}
}

// hit kills or stops one process. It returns the GPU whose control daemon may be another one then, -1 for none.
func (f *randomFaults) hit() (what string, replaced int) {
	f.t.Helper()
	kill := f.random.IntN(2) == 0
	g := f.random.IntN(8)
	switch f.random.IntN(5) {
	case 0:
		f.next = (f.next + 1) % 8
		g = f.next
		if kill {
			f.signal(f.pids[g], syscall.SIGKILL)
			f.leave(g) // Its server has outlived it, and is not stopped while it has clients.
			return fmt.Sprintf("control daemon of GPU %d killed", g), g
		}
		f.pause(f.pids[g])
		return fmt.Sprintf("control daemon of GPU %d stopped", g), -1
	case 1:
		m, err := f.n.Client().MPS(soon(f.t), strconv.Itoa(g))
		if err != nil {
			f.t.Fatal(err)
		}
		if len(m.Servers) == 0 {
			return "nothing", -1
		}
		if kill {
			f.signal(m.Servers[0], syscall.SIGKILL)
			f.leave(g)
			return fmt.Sprintf("server of GPU %d killed", g), -1
		}
		f.pause(m.Servers[0])
		return fmt.Sprintf("server of GPU %d stopped", g), -1
	case 2:
		for g, job := range f.jobs {
			pid := job.PID()
			if kill {
				f.signal(pid, syscall.SIGKILL)
				f.leave(g)
				return fmt.Sprintf("client of GPU %d killed", g), -1
			}
			f.pause(pid)
			return fmt.Sprintf("client of GPU %d stopped", g), -1
		}
		return "nothing", -1
	case 3:
		pid := workerOf(f.t, f.n.DaemonPID())
		if pid == 0 {
			return "nothing", -1
		}
		if kill {
			f.signal(pid, syscall.SIGKILL)
			return "worker killed", -1
		}
		f.pause(pid)
		return "worker stopped", -1
	}
	if !kill {
		f.pause(f.n.DaemonPID())
		return "daemon stopped", -1
	}
	f.n.KillDaemon()
	if err := f.n.StartDaemon(soon(f.t)); err != nil {
		f.t.Fatal(err)
	}
	return "daemon killed", -1
}

func (f *randomFaults) signal(pid int, s syscall.Signal) {
	f.t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		f.t.Fatalf("pid %d: %v", pid, err)
	}
}

// pause stops a process for up to 300 ms. The time is the fault itself: nothing is waited for.
func (f *randomFaults) pause(pid int) {
	f.t.Helper()
	f.signal(pid, syscall.SIGSTOP)
	time.Sleep(time.Duration(f.random.IntN(300)) * time.Millisecond)
	f.signal(pid, syscall.SIGCONT)
}

// converged waits until all is as the spec says. replaced is the GPU whose control daemon may be another one.
func (f *randomFaults) converged(where string, replaced int) {
	f.t.Helper()
	old := f.pids
	var why string
	c, ctx := f.n.Client(), soon(f.t)
	defer c.Close()
	err := harness.Await(ctx, 20*time.Millisecond, "the node does not converge", func() (bool, error) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err
		}
		why = ""
		for i := range s.GPUs {
			g := &s.GPUs[i]
			switch {
			case g.State != "ok":
				why = fmt.Sprintf("GPU %d is %s: %s", i, g.State, g.Reason)
			case g.MPS == nil || g.MPS.State != "running" || !running(g.MPS.PID):
				why = fmt.Sprintf("GPU %d has MPS %+v", i, g.MPS)
			case i == replaced && g.MPS.PID == old[i]:
				why = fmt.Sprintf("GPU %d: the end of its control daemon was not seen", i)
			}
			if why != "" {
				return false, nil
			}
			f.pids[i] = g.MPS.PID
		}
		for _, cond := range s.Node.Conditions {
			if strings.HasPrefix(cond.Kind, "mps") || cond.Kind == "gpu" || cond.Kind == "drift" || cond.Kind == "driver" {
				why = "condition " + cond.Kind + ": " + cond.Message
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		f.t.Fatalf("%s: %v: %s\n%s", where, err, why, daemonLog(f.n))
	}
	for i := range f.pids {
		if old[i] != 0 && f.pids[i] != old[i] && i != replaced {
			f.t.Errorf("%s: the control daemon of GPU %d was restarted too", where, i)
		}
	}
	f.limits(where)
	if f.random.IntN(10) == 0 {
		f.computeModes([]int{4, 5, 6, 7})
	}
}

// limits compares what the control daemons report with the spec, of two GPUs with grants.
func (f *randomFaults) limits(where string) {
	f.t.Helper()
	for _, g := range []int{f.random.IntN(2), 4 + f.random.IntN(2)} {
		m, err := f.n.Client().MPS(soon(f.t), strconv.Itoa(g))
		if err != nil {
			f.t.Fatalf("%s: %v", where, err)
		}
		for _, want := range []string{"30%", "2G"} {
			if !slices.ContainsFunc(
				m.Rules, func(r api.Rule) bool { return strings.HasPrefix(r.What, "default") && r.Desired == want && r.Enforced },
			) {
				f.t.Errorf("%s: GPU %d has no default of %s: %+v", where, g, want, m.Rules)
			}
		}
	}
}

// computeModes compares the compute modes of the virtual GPUs: those named are exclusive, the others are not.
func (f *randomFaults) computeModes(exclusive []int) {
	f.t.Helper()
	var v struct {
		GPUs []gpu.Snapshot `json:"gpus"`
	}
	if err := f.n.Ctl(soon(f.t), &v, "status"); err != nil {
		f.t.Fatal(err)
	}
	for i := range v.GPUs {
		if is := v.GPUs[i].ComputeMode == gpu.ComputeExclusiveProcess; is != slices.Contains(exclusive, i) {
			f.t.Errorf("the compute mode of GPU %d is %s", i, v.GPUs[i].ComputeMode)
		}
	}
}

// processes are the command lines of the programs of MPS on this node.
func (f *randomFaults) processes() (out []string) {
	f.t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, file := range found {
		b, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(b), filepath.Join(f.n.Root(), "usr/bin/nvidia-cuda-mps")) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

// sockets are the listening sockets of this node.
func (f *randomFaults) sockets() string {
	f.t.Helper()
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, f.n.Dir) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }
