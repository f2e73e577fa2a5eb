package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// everything is a spec with all that unmanage can remove.
const everything = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 1g.5gb]}}
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: mps, mps: {bypass: deny}}
tenants:
  - name: red
    tasks: 500
    grants:
      - {name: cut, mig: 3g.20gb}
      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}
      - {name: join, mps: {share: 30%, gpu_memory: 8GiB}}
`

// slicesOf lists the slices in the subtree of the node; nil if the node has no slices.
func slicesOf(t *testing.T, n *harness.Node) []string {
	t.Helper()
	h, err := cgroup.FindHierarchy()
	if err != nil || !strings.Contains(status(t, n).Node.Adapter, "cgroupfs") {
		return nil
	}
	top := h.Dir(n.Subtree())
	found, err := filepath.Glob(filepath.Join(top, "*.slice"))
	inner, err2 := filepath.Glob(filepath.Join(top, "*.slice", "*.slice"))
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return append(found, inner...)
}

// computeModes are the compute modes of the virtual GPUs.
func computeModes(t *testing.T, n *harness.Node) string {
	t.Helper()
	var v struct {
		GPUs []struct {
			ComputeMode string `json:"compute_mode"`
		} `json:"gpus"`
	}
	if err := n.Ctl(soon(t), &v, "status"); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, g := range v.GPUs {
		out = append(out, g.ComputeMode)
	}
	return strings.Join(out, " ")
}

// unmanaged checks that no restriction is active, and that the daemon does not change the node.
func unmanaged(t *testing.T, n *harness.Node) {
	t.Helper()
	if found := slicesOf(t, n); len(found) != 0 {
		t.Errorf("slices are left: %q", found)
	}
	if left, err := filepath.Glob(filepath.Join(n.Dir, "run", "mps", "*", "record.json")); err != nil || len(left) != 0 {
		t.Errorf("MPS is left: %q, %v", left, err)
	}
	if left, err := filepath.Glob(filepath.Join(n.Dir, "cdi", "gpushare-*")); err != nil || len(left) != 0 {
		t.Errorf("CDI files are left: %q, %v", left, err)
	}
	if r := n.CLI(soon(t), "unmanage", "--check"); r.Code != 0 || !strings.Contains(r.Out, "no active restrictions") {
		t.Errorf("--check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	c := n.Client()
	first, err := c.Counters(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	seen := writes(t, n)
	for range 2 {
		if err := c.Reload(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	last, err := c.Counters(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if first["writes"] != last["writes"] || writes(t, n) != seen {
		t.Errorf("after unmanage the daemon made %d writes", last["writes"]-first["writes"])
	}
}

// Without --force running leases are named and not stopped. With --force restrictions and MPS are removed, and GPUs stay
// partitioned.
func TestUnmanage(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	modes := computeModes(t, n)
	apply(t, n, everything)
	cut := truth(t, n)
	job, id := begin(t, n, "red", "part", "sleep", "60")
	r := n.CLI(soon(t), "unmanage")
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, id) || !strings.Contains(r.Err, "--force") {
		t.Errorf("unmanage while %s runs exits with %d: %s%s", id, r.Code, r.Out, r.Err)
	}
	r = n.CLI(soon(t), "unmanage", "--check")
	if r.Code != api.ExitConflict || !strings.Contains(r.Out, id) || !strings.Contains(r.Out, "stop MPS") {
		t.Errorf("--check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if s := status(t, n); s.Node.Generation != 1 || s.Node.Enforce != "on" || s.Node.Unmanaged != nil || leaseByID(s, id) == nil {
		t.Errorf("a refused unmanage changed the node: %+v", s.Node)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("after a refused unmanage no lease starts: %s", r.Err)
	}
	r = n.CLI(soon(t), "unmanage", "--force")
	if r.Code != 0 || !strings.Contains(r.Out, "unmanaged") {
		t.Fatalf("with force it exits with %d: %s%s\n%s", r.Code, r.Out, r.Err, daemonLog(n))
	}
	if code := awaitEnd(t, job); code != -int(syscall.SIGTERM) {
		t.Errorf("the job ended with %d, not by SIGTERM", code)
	}
	unmanaged(t, n)
	if got := truth(t, n); got != cut {
		t.Errorf("the GPUs are partitioned as\n     %s\nwant %s", got, cut)
	}
	if got := computeModes(t, n); got != modes {
		t.Errorf("the compute modes are %s, they were %s", got, modes)
	}
	s := status(t, n)
	if s.Node.Unmanaged == nil || s.Node.Unmanaged.All || s.Node.Unmanaged.By == "" || s.Node.Enforce != "observe" ||
		s.Node.Generation != 2 {
		t.Errorf("status says %+v", s.Node)
	}
	if r := n.CLI(soon(t), "status"); !strings.Contains(r.Out, "unmanaged by") {
		t.Errorf("status says:\n%s", r.Out)
	}
	if r := n.CLI(soon(t), "get"); r.Code != 0 || !strings.Contains(r.Out, "enforce: observe") || !strings.Contains(r.Out, "share: 30%") {
		t.Errorf("get says:\n%s%s", r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "unmanage"); r.Code != 0 || !strings.Contains(r.Out, "no changes") {
		t.Errorf("a second unmanage exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	unmanaged(t, n)
	if s := status(t, n); s.Node.Unmanaged == nil || s.Node.Generation != 2 {
		t.Errorf("after a restart status says %+v", s.Node)
	}
	apply(t, n, everything)
	if s := awaitChange(t, n); s.Node.Unmanaged != nil || s.Node.Enforce != "on" || s.Node.Generation != 3 {
		t.Errorf("after an apply status says %+v", s.Node)
	}
	if got := truth(t, n); got != cut {
		t.Errorf("after an apply the GPUs are partitioned as\n     %s\nwant %s", got, cut)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "true"); r.Code != 0 {
		t.Errorf("after an apply no lease starts: %s", r.Err)
	}
}

// With --all the instances of gpushare are removed, foreign instances stay, and no spec is in force, not even that of the
// settings.
func TestUnmanageAll(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, "version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: 1}, mode: mig, mig: {layout: [2g.10gb]}}\n")
	n.StopDaemon()
	if err := os.RemoveAll(filepath.Join(n.Dir, "state")); err != nil { // Now it is a foreign instance.
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte(everything), 0o644); err != nil {
		t.Fatal(err)
	}
	n.Settings = map[string]string{"spec_file": file}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitChange(t, n)
	if r := n.CLI(soon(t), "unmanage", "--all"); r.Code != 0 || !strings.Contains(r.Out, "destroy 3g.20gb") {
		t.Fatalf("it exits with %d: %s%s\n%s", r.Code, r.Out, r.Err, daemonLog(n))
	}
	unmanaged(t, n)
	if got := truth(t, n); strings.Contains(got, "GPU 0") || !strings.Contains(got, "GPU 1") {
		t.Errorf("the GPUs are partitioned as %q: want only the foreign instance", got)
	}
	for range 2 {
		if s := status(t, n); s.Node.Unmanaged == nil || !s.Node.Unmanaged.All || len(s.Tenants) != 0 || s.Node.Generation != 2 {
			t.Errorf("status says %+v", s.Node)
		}
		if r := n.CLI(soon(t), "get"); r.Code == 0 || !strings.Contains(r.Err, "unmanaged the node") {
			t.Errorf("get exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
		n.StopDaemon()
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, n, everything)
	if s := awaitChange(t, n); s.Node.Generation != 3 || s.Node.Unmanaged != nil {
		t.Errorf("after an apply status says %+v", s.Node)
	}
}

// The daemon is killed at every fault point of an unmanage. Either it was acknowledged and is resumed, or nothing is changed.
func TestKilledWhileUnmanaging(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n, _ := crashNode(t, buildWithFaults(t))
	kills := 0
	for k := 1; ; k += enumeration.Stride(3) {
		apply(t, n, everything)
		where := fmt.Sprintf("kill %d", k)
		n.StopDaemon()
		n.Env = []string{fmt.Sprintf("GPUSHARE_FAULT=*:kill@%d", k)}
		taken, done := false, false
		if err := n.StartDaemon(soon(t)); err == nil {
			if taken, done, err = unmanageOn(t, n); err != nil && !ended(n) {
				t.Fatalf("%s: unmanage failed and the daemon runs: %v\n%s", where, err, daemonLog(n))
			}
		}
		if !done {
			kills++
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
		switch {
		case s.Node.Unmanaged != nil:
			unmanaged(t, n)
			if got := truth(t, n); strings.Contains(got, "GPU 0") {
				t.Errorf("%s: the node is unmanaged and has %s", where, got)
			}
		case taken:
			t.Errorf("%s: unmanage was acknowledged and not resumed", where)
		}
		if t.Failed() {
			t.Fatal(daemonLog(n))
		}
		if done {
			break
		}
	}
	if kills < 5 {
		t.Errorf("only %d kills", kills)
	}
	t.Logf("%d kills", kills)
}

// unmanageOn unmanages the node. taken reports that the daemon accepted it, done that the operation succeeded.
func unmanageOn(t *testing.T, n *harness.Node) (taken, done bool, err error) {
	t.Helper()
	c := n.Client()
	res, err := c.Unmanage(soon(t), client.UnmanageOptions{All: true})
	if err != nil {
		return false, false, err
	}
	if res.Operation == nil {
		return true, true, nil
	}
	op, err := c.Follow(soon(t), res.Operation, func(*api.Operation) {})
	if err == nil && op.State != "done" {
		t.Logf("it ended with %+v", op.Error)
		err = errors.New("it ended " + op.State)
	}
	return true, err == nil, err
}

// Without the daemon --check answers from the saved state, and exits with 0 only if that is certain.
func TestUnmanageCheckWithoutDaemon(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	settings := filepath.Join(n.Dir, "gpushared.yaml")
	check := func() harness.Result { return n.CLI(soon(t), "unmanage", "--check", "--settings", settings) }
	n.StopDaemon()
	if r := check(); r.Code != 0 {
		t.Errorf("before any spec it exits with %d: %s", r.Code, r.Err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, everything)
	n.KillDaemon()
	r := check()
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, "restrictions are active") ||
		!strings.Contains(r.Err, "systemctl start gpushared") {
		t.Errorf("while restrictions are active it exits with %d: %s", r.Code, r.Err)
	}
	state := filepath.Join(n.Dir, "state", "state.json")
	whole, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"state.json", "state.previous.json"} {
		if err := os.WriteFile(filepath.Join(n.Dir, "state", name), whole[:len(whole)/2], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := check(); r.Code != api.ExitConflict || !strings.Contains(r.Err, "cannot tell") {
		t.Errorf("with a damaged state it exits with %d: %s", r.Code, r.Err)
	}
	if err := os.WriteFile(state, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "unmanage"); r.Code != 0 {
		t.Fatalf("unmanage exits with %d: %s", r.Code, r.Err)
	}
	n.StopDaemon()
	if r := check(); r.Code != 0 {
		t.Errorf("after unmanage it exits with %d: %s", r.Code, r.Err)
	}
}

// A process outside a lease in a slice is never stopped: the restrictions of the slice are removed, and the slice itself after
// the process has ended.
func TestUnmanageAroundOtherProcesses(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, everything)
	found := slicesOf(t, n)
	if len(found) == 0 {
		t.Skip("slices need root and a cgroup v2 hierarchy")
	}
	inside := filepath.Join(found[0], "theirs")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	other, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Kill() // It may have ended.
		_, _ = other.Wait()
		_ = os.Remove(inside)
	})
	if err := os.WriteFile(filepath.Join(inside, "cgroup.procs"), []byte(fmt.Sprint(other.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "unmanage"); r.Code != 0 {
		t.Fatalf("unmanage exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if err := other.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the other process was stopped: %v", err)
	}
	onlyOneSlice(t, n, filepath.Base(found[0]))
	if err := other.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Wait(); err != nil {
		t.Fatal(err)
	}
	err = harness.Await(
		soon(t), 10*time.Millisecond, "its cgroup is not removed", func() (bool, error) { return os.Remove(inside) == nil, nil },
	)
	if err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "unmanage"); r.Code != 0 {
		t.Fatalf("a second unmanage exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	unmanaged(t, n)
}

// onlyOneSlice checks that only the slice with the other process is left.
func onlyOneSlice(t *testing.T, n *harness.Node, theirs string) {
	t.Helper()
	for _, s := range slicesOf(t, n) {
		if filepath.Base(s) != theirs {
			t.Errorf("slice %s is left", s)
		}
	}
	if r := n.CLI(soon(t), "unmanage", "--check"); r.Code != 0 {
		t.Errorf("--check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}
