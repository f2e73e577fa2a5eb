package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// before and after are two layouts of one node. The change from each to the other has steps of every kind: instances are
// destroyed and created, a control daemon is started or stopped, grants are added and removed.
const before = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 2g.10gb]}}
  - {select: {index: 1}, mode: mig, mig: {layout: [7g.40gb]}}
  - {select: {index: 2}, mode: timeslice}
tenants:
  - name: red
    grants:
      - {name: cut, mig: 3g.20gb}
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}
`

const after = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [4g.20gb, 2g.10gb]}}
  - {select: {index: 1}, mode: mig, mig: {layout: [3g.20gb]}}
  - {select: {index: 2}, mode: mps}
tenants:
  - name: red
    grants:
      - {name: cut, mig: 3g.20gb}
      - {name: join, mps: {share: 30%, gpu_memory: 8GiB}}
`

// truth lists the instances of every GPU as the virtual node has them: "profile@start", by GPU.
func truth(t *testing.T, n *harness.Node) string {
	t.Helper()
	var v struct {
		GPUs []gpu.Snapshot `json:"gpus"`
	}
	if err := n.Ctl(soon(t), &v, "status"); err != nil {
		t.Fatal(err)
	}
	var out []string
	for i := range v.GPUs {
		for _, in := range v.GPUs[i].Instances {
			s := fmt.Sprintf("GPU %d: profile %d at %d", i, in.ProfileID, in.Placement.Start)
			if len(in.Compute) != 1 {
				s += fmt.Sprintf(" with %d compute instances", len(in.Compute))
			}
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// withoutPlaces is a truth without the placements.
func withoutPlaces(truth string) string {
	parts := strings.Split(truth, "; ")
	for i, p := range parts {
		what, place, _ := strings.Cut(p, " at ")
		_, more, _ := strings.Cut(place, " ") // an instance with missing compute instances stays distinct
		parts[i] = strings.TrimSpace(what + " " + more)
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// awaitChange waits until no change is open and returns the status.
func awaitChange(t *testing.T, n *harness.Node) *api.Status {
	t.Helper()
	c, ctx := n.Client(), soon(t) // One client: each has its own connection, and only root may have many.
	defer c.Close()
	err := harness.Await(ctx, 10*time.Millisecond, "the change is still open", func() (bool, error) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err
		}
		return s.Node.Operation == "", nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, daemonLog(n))
	}
	if err := c.Reload(soon(t)); err != nil { // So that the status describes the node after the change.
		t.Errorf("cannot converge after a change: %v", err)
	}
	return status(t, n)
}

// retryGPU runs gpu retry. The daemon may restore other GPUs on its own at any moment, also after a boot: then its answer says to
// wait for that change and to try again.
func retryGPU(t *testing.T, n *harness.Node, gpu string) harness.Result {
	t.Helper()
	for ctx := soon(t); ; {
		r := n.CLI(soon(t), "gpu", "retry", gpu)
		if !strings.Contains(r.Err, "another change is under way") || ctx.Err() != nil {
			return r
		}
		awaitChange(t, n)
	}
}

// daemonLog is the end of the log of the daemon.
func daemonLog(n *harness.Node) string {
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6<<10):])
}

// explained reports everything that should not exist: held GPUs, foreign instances, drift, unreadable state.
func explained(t *testing.T, s *api.Status, where string) {
	t.Helper()
	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.State != "ok" {
			t.Errorf("%s: GPU %d is %s: %s", where, g.Index, g.State, g.Reason)
		}
	}
	for _, c := range s.Node.Conditions {
		if c.Kind != "not-enforced" {
			t.Errorf("%s: condition %s: %s", where, c.Kind, c.Message)
		}
	}
}

// applyOn applies a spec without authority and follows it to its end. acknowledged reports that the daemon accepted the spec,
// done that the operation succeeded.
func applyOn(ctx context.Context, n *harness.Node, spec string) (acknowledged, done bool, err error) {
	c := n.Client()
	res, err := c.Apply(ctx, []byte(spec), client.ApplyOptions{})
	if err != nil {
		return false, false, err
	}
	if res.Operation == nil {
		return true, true, nil
	}
	op, err := c.Follow(ctx, res.Operation, func(*api.Operation) {})
	if err != nil {
		return true, false, err
	}
	if op.State != "done" {
		return true, false, errors.New(op.State + ": " + op.Error.Message)
	}
	return true, true, nil
}

// crashNode starts a node whose daemon has fault points, and applies the spec 'before'.
func crashNode(t *testing.T, binaries string) (n *harness.Node, old string) {
	t.Helper()
	n = newNode(t, quick)
	n.Bin = binaries
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, before)
	return n, truth(t, n)
}

// The daemon is killed at every fault point of a change from one layout to another and back: between two steps, in them, and
// while it writes its state.
func TestDaemonKilled(t *testing.T) {
	enumeration.Long(t)
	binaries := buildWithFaults(t)
	t.Run("while undoing", func(t *testing.T) {
		t.Parallel()
		killedWhileUndoing(t, binaries)
	})
	t.Run("while forcing", func(t *testing.T) {
		t.Parallel()
		killedWhileForcing(t, binaries)
	})
	t.Run("and booted", func(t *testing.T) {
		t.Parallel()
		killedAndBooted(t, binaries)
	})
	const workers = 2
	for worker := range workers {
		t.Run(fmt.Sprintf("worker-%d", worker), func(t *testing.T) {
			t.Parallel()
			stride, first := workers, worker+1
			stride *= enumeration.Stride(9)
			n, layoutBefore := crashNode(t, binaries)
			apply(t, n, after)
			specs, layouts := []string{after, before}, []string{withoutPlaces(truth(t, n)), withoutPlaces(layoutBefore)}
			over := []bool{false, false} // no fault point is left in this direction
			kills := 0
			for k := first; !over[0] || !over[1]; k += stride {
				for to := range 2 {
					to := 1 - to // the first direction is back to 'before'
					if over[to] {
						apply(t, n, specs[to])
						continue
					}
					died := killedAt(t, n, k, specs[to], layouts[to])
					over[to] = !died
					if died {
						kills++
					}
				}
				if t.Failed() {
					return
				}
			}
			if kills == 0 {
				t.Error("no kill happened")
			}
			t.Logf("%d kills", kills)
		})
	}
}

// killedAt applies a spec and kills the daemon at the kth fault point since its start. It reports whether it was killed.
func killedAt(t *testing.T, n *harness.Node, k int, spec, desired string) (died bool) {
	t.Helper()
	old := truth(t, n)
	where := fmt.Sprintf("kill %d", k)
	n.StopDaemon()
	n.Env = []string{fmt.Sprintf("GPUSHARE_FAULT=*:kill@%d", k)}
	generation := uint64(0)
	acknowledged, done := false, false
	if err := n.StartDaemon(soon(t)); err == nil {
		if s, err := n.Client().Status(soon(t)); err == nil {
			generation = s.Node.Generation
		}
		acknowledged, done, err = applyOn(soon(t), n, spec)
		if err != nil && !ended(n) {
			t.Fatalf("%s: the apply failed and the daemon runs: %v\n%s", where, err, daemonLog(n))
		}
	}
	if died = !done; died {
		awaitKill(t, n)
		where += " (" + lastFault(n) + ")"
	} else {
		n.StopDaemon()
	}
	n.Env = nil
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatalf("%s: the daemon does not start again: %v", where, err)
	}
	s := awaitChange(t, n)
	explained(t, s, where)
	got := truth(t, n)
	switch {
	case withoutPlaces(got) == desired:
	case got == old && !acknowledged:
		// It was not accepted: no step may have begun.
	default:
		t.Errorf(
			"%s, acknowledged %v: the node has neither the old nor the new layout:\n got %s\n old %s\n new %s", where, acknowledged,
			got, old, desired,
		)
	}
	if acknowledged && s.Node.Generation <= generation && generation > 0 {
		t.Errorf("%s: the spec was acknowledged, and generation %d is still in force", where, s.Node.Generation)
	}
	if s.Node.Generation > generation && generation > 0 && withoutPlaces(got) != desired {
		t.Errorf("%s: generation %d is in force and its layout is not", where, s.Node.Generation)
	}
	r := n.CLIIn(soon(t), spec, "apply", "-f", "-")
	if r.Code != 0 {
		t.Errorf("%s: a second apply exits with %d: %s", where, r.Code, r.Err)
	}
	if s.Node.Generation > generation && generation > 0 && !strings.Contains(r.Out, "no changes") {
		t.Errorf("%s: after the change was closed, a second apply changes something:\n%s", where, r.Out)
	}
	if got := truth(t, n); withoutPlaces(got) != desired {
		t.Errorf("%s: after a second apply the node has\n got %s\nwant %s", where, got, desired)
	}
	if t.Failed() {
		t.Log(daemonLog(n))
	}
	return died
}

// awaitKill waits until the daemon was killed at its fault point. A daemon that ends otherwise, as after a panic, would be taken for
// one that was killed, at every point of an enumeration that then never ends.
func awaitKill(t *testing.T, n *harness.Node) {
	t.Helper()
	select {
	case <-n.DaemonDone():
	case <-soon(t).Done():
		t.Fatalf("the daemon was not killed\n%s", daemonLog(n))
	}
	if code := n.DaemonExit(); code != -1 {
		t.Fatalf("the daemon ended with %d and was not killed\n%s", code, daemonLog(n))
	}
}

func ended(n *harness.Node) bool {
	select {
	case <-n.DaemonDone():
		return true
	case <-time.After(5 * time.Second): // The connection may break before the process has exited.
		return false
	}
}

// lastFault is the fault point at which the daemon was killed last.
func lastFault(n *harness.Node) string {
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		return err.Error()
	}
	at := strings.LastIndex(string(b), "fault point ")
	if at < 0 {
		return "at no fault point"
	}
	line, _, _ := strings.Cut(string(b[at:]), "\n")
	return strings.TrimPrefix(line, "fault point ")
}

// The daemon is killed while it undoes a failed change. The GPU then has the new layout, or the old one at its old
// placements, and the status says which and why.
func killedWhileUndoing(t *testing.T, binaries string) {
	n, _ := crashNode(t, binaries)
	apply(t, n, after)
	desired := withoutPlaces(truth(t, n))
	kills := 0
	for k := 1; ; k++ {
		apply(t, n, before)
		old := truth(t, n)
		where := fmt.Sprintf("kill %d while undoing", k)
		if err := n.Ctl(
			soon(t), nil, "fault", "add", "DeviceCreateGpuInstance*", "fail", "--gpu", "0", "--nth", "1", "--times", "1",
		); err != nil {
			t.Fatal(err)
		}
		n.StopDaemon()
		n.Env = []string{fmt.Sprintf("GPUSHARE_FAULT=engine.*-undo.*:kill@%d", k)}
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		acknowledged, done, err := applyOn(soon(t), n, after)
		if !acknowledged || done {
			t.Fatalf("%s: the apply ended with acknowledged %v, done %v, %v", where, acknowledged, done, err)
		}
		died := !strings.HasPrefix(err.Error(), "degraded")
		if died {
			awaitKill(t, n)
			kills++
			n.Env = nil
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatalf("%s: the daemon does not start again: %v", where, err)
			}
		}
		s := awaitChange(t, n)
		got := truth(t, n)
		switch s.GPUs[0].State {
		case "ok":
			explained(t, s, where)
			if withoutPlaces(got) != desired {
				t.Errorf("%s: no GPU is held and the node has\n got %s\nwant %s", where, got, desired)
			}
		case "held":
			if s.GPUs[0].Reason == "" {
				t.Errorf("%s: GPU 0 is held without a reason", where)
			}
			if gotOf, oldOf := onGPU(got, 0), onGPU(old, 0); gotOf != oldOf {
				t.Errorf("%s: GPU 0 is held and has\n got %s\nwant %s", where, gotOf, oldOf)
			}
		default:
			t.Errorf("%s: GPU 0 is %s: %s", where, s.GPUs[0].State, s.GPUs[0].Reason)
		}
		if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
			t.Fatal(err)
		}
		if r := retryGPU(t, n, "0"); r.Code != 0 {
			t.Errorf("%s: gpu retry exits with %d: %s", where, r.Code, r.Err)
		}
		explained(t, awaitChange(t, n), where+", after a retry")
		if got := truth(t, n); withoutPlaces(got) != desired {
			t.Errorf("%s: after a retry the node has\n got %s\nwant %s", where, got, desired)
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
}

// The daemon is killed while it runs a change that stops a lease. The next daemon resumes it with the authority of the
// change and stops the lease.
func killedWhileForcing(t *testing.T, binaries string) {
	n, _ := crashNode(t, binaries)
	apply(t, n, after)
	desired := withoutPlaces(truth(t, n))
	for k := 1; ; k++ {
		apply(t, n, before)
		where := fmt.Sprintf("kill %d while forcing", k)
		job, id := begin(t, n, "red", "cut", n.Burn("--memory", "64MiB", "--hold")...)
		neighbour, _ := begin(t, n, "red", "part", "sleep", "60")
		n.StopDaemon()
		n.Env = []string{fmt.Sprintf("GPUSHARE_FAULT=engine.*:kill@%d", k)}
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		c := n.Client()
		res, err := c.Apply(soon(t), []byte(after), client.ApplyOptions{Force: true})
		if err == nil && res.Operation != nil {
			_, err = c.Follow(soon(t), res.Operation, func(*api.Operation) {})
		}
		died := err != nil // Also without an answer: the change is recorded before the first fault point.
		if died {
			awaitKill(t, n)
			where += " (" + lastFault(n) + ")"
		}
		n.StopDaemon()
		n.Env = nil
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatalf("%s: the daemon does not start again: %v", where, err)
		}
		s := awaitChange(t, n)
		explained(t, s, where)
		if got := truth(t, n); withoutPlaces(got) != desired {
			t.Errorf("%s: the node has\n got %s\nwant %s", where, got, desired)
		}
		for _, j := range []*harness.Job{job, neighbour} { // The grant of the other tenant was removed.
			if code := awaitEnd(t, j); code == 0 {
				t.Errorf("%s: the job exited without a stop: %s", where, j.Output())
			}
		}
		if leaseByID(s, id) != nil {
			t.Errorf("%s: the lease is still there", where)
		}
		if t.Failed() {
			t.Fatal(daemonLog(n))
		}
		if !died {
			t.Logf("%d kills", k-1)
			if k == 1 {
				t.Error("no kill happened")
			}
			return
		}
		k += enumeration.Stride(6) - 1
	}
}

// The host is switched off during a change, and the instances are lost. After the boot the daemon reaches the accepted spec
// without a request.
func killedAndBooted(t *testing.T, binaries string) {
	n, _ := crashNode(t, binaries)
	apply(t, n, after)
	desired := withoutPlaces(truth(t, n))
	for k := 1; ; k += 2 * enumeration.Stride(6) {
		apply(t, n, before)
		where := fmt.Sprintf("boot after kill %d", k)
		n.StopDaemon()
		n.Env = []string{fmt.Sprintf("GPUSHARE_FAULT=engine.*:kill@%d", k)}
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		_, done, _ := applyOn(soon(t), n, after)
		if !done {
			awaitKill(t, n)
			where += " (" + lastFault(n) + ")"
		}
		n.StopDaemon()
		if err := n.Ctl(soon(t), nil, "reboot"); err != nil {
			t.Fatal(err)
		}
		n.Env = nil
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatalf("%s: the daemon does not start again: %v", where, err)
		}
		err := harness.Await(soon(t), 20*time.Millisecond, where+": the layout is not created", func() (bool, error) {
			return withoutPlaces(truth(t, n)) == desired, nil
		})
		if err != nil {
			t.Fatalf("%v\n got %s\nwant %s\n%s", err, truth(t, n), desired, daemonLog(n))
		}
		explained(t, awaitChange(t, n), where)
		if r := n.CLIIn(soon(t), after, "apply", "-f", "-"); r.Code != 0 || !strings.Contains(r.Out, "no changes") {
			t.Errorf("%s: a second apply exits with %d: %s%s", where, r.Code, r.Out, r.Err)
		}
		if t.Failed() {
			t.Fatal(daemonLog(n))
		}
		if done {
			return
		}
	}
}

// onGPU is the part of a truth for one GPU.
func onGPU(truth string, index int) string {
	var out []string
	for _, p := range strings.Split(truth, "; ") {
		if strings.HasPrefix(p, fmt.Sprintf("GPU %d:", index)) {
			out = append(out, p)
		}
	}
	return strings.Join(out, "; ")
}

// slow is 'quick' with driver latencies, so that a step still runs after its start was observed.
const slow = quick + `latency:
  DeviceCreateGpuInstance*: 80ms
  GpuInstanceCreateComputeInstance*: 40ms
  GpuInstanceDestroy: 80ms
  ComputeInstanceDestroy: 40ms
`

// workerOf returns the NVML worker of a daemon.
func workerOf(t *testing.T, daemon int) int {
	t.Helper()
	pid := 0
	err := harness.Await(soon(t), 5*time.Millisecond, "the daemon has no worker", func() (bool, error) {
		stats, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			return false, err
		}
		for _, file := range stats {
			b, err := os.ReadFile(file)
			if err != nil {
				continue // It ended.
			}
			// pid (comm) state ppid …; the comm of gpushare-nvml has no parenthesis.
			head, rest, _ := strings.Cut(string(b), ") ")
			if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(daemon) && f[0] != "Z" &&
				strings.HasSuffix(head, "(gpushare-nvml") {
				pid, err = strconv.Atoi(strings.Fields(head)[0])
				return err == nil, err
			}
		}
		return false, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// The worker is killed at every step of a change. The change ends, and each GPU has the new layout or the old one.
func TestWorkerKilledAtEveryStep(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, slow)
	apply(t, n, after)
	desired := withoutPlaces(truth(t, n))
	kills := 0
	for k := 1; ; k += enumeration.Stride(3) {
		apply(t, n, before)
		old := truth(t, n)
		where := fmt.Sprintf("worker killed at step %d", k)
		c := n.Client()
		res, err := c.Apply(soon(t), []byte(after), client.ApplyOptions{})
		if err != nil || res.Operation == nil {
			t.Fatalf("%s: cannot apply: %v", where, err)
		}
		steps, died := len(res.Plan.Steps), false
		op, err := c.Follow(soon(t), res.Operation, func(op *api.Operation) {
			for _, s := range op.Plan.Steps {
				if s.ID == k && s.State == "doing" && !died {
					died = true
					where += " (" + s.Text + ")"
					if err := syscall.Kill(workerOf(t, n.DaemonPID()), syscall.SIGKILL); err != nil {
						t.Error(err)
					}
				}
			}
		})
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if died {
			kills++
		}
		s := awaitChange(t, n)
		got := truth(t, n)
		switch op.State {
		case "done":
			explained(t, s, where)
			if withoutPlaces(got) != desired {
				t.Errorf("%s: it succeeded and the node has\n got %s\nwant %s", where, got, desired)
			}
		case "degraded":
			t.Logf("%s: %s", where, op.Error.Message)
			for i := range 2 {
				switch s.GPUs[i].State {
				case "held":
					if s.GPUs[i].Reason == "" {
						t.Errorf("%s: GPU %d is held without a reason", where, i)
					}
					if onGPU(got, i) != onGPU(old, i) {
						t.Errorf("%s: GPU %d is held and has\n got %s\nwant %s", where, i, onGPU(got, i), onGPU(old, i))
					}
				default:
					if withoutPlaces(onGPU(got, i)) != onGPU(desired, i) {
						t.Errorf("%s: GPU %d is %s and has\n got %s\nwant %s", where, i, s.GPUs[i].State, onGPU(got, i), onGPU(desired, i))
					}
				}
			}
		default:
			t.Errorf("%s: it ended %s: %+v", where, op.State, op.Error)
		}
		for i := range 3 {
			if s.GPUs[i].State == "ok" {
				continue
			}
			if r := retryGPU(t, n, strconv.Itoa(i)); r.Code != 0 {
				t.Errorf("%s: gpu retry %d exits with %d: %s", where, i, r.Code, r.Err)
			}
		}
		explained(t, awaitChange(t, n), where+", after a retry")
		if got := truth(t, n); withoutPlaces(got) != desired {
			t.Errorf("%s: after a retry the node has\n got %s\nwant %s", where, got, desired)
		}
		if t.Failed() {
			t.Fatal(daemonLog(n))
		}
		if k >= steps {
			break
		}
	}
	if kills == 0 {
		t.Error("no running step was observed")
	}
}
