package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// A layout that is lost by a driver reload or a reset within one boot is restored at the same placements. An instance that is
// destroyed by hand is not.
func TestLayoutsComeBack(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := patient(t, replaced(t, quick, "gpus:", "monitors_block_reset: false\ngpus:"))
	apply(t, n, shared)
	was := truth(t, n)
	back := func(what string) {
		t.Helper()
		err := harness.Await(soon(t), 20*time.Millisecond, "after "+what+" the layout is not restored", func() (bool, error) {
			return truth(t, n) == was, nil
		})
		if err != nil {
			t.Fatalf("%v:\n got %s\nwant %s\n%s", err, truth(t, n), was, daemonLog(n))
		}
		explained(t, awaitChange(t, n), "after "+what)
		if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "true"); r.Code != 0 {
			t.Errorf("after %s no lease gets an instance: %s", what, r.Err)
		}
	}
	order := func(words ...string) {
		t.Helper()
		if err := n.Ctl(soon(t), nil, words...); err != nil {
			t.Fatal(err)
		}
	}

	order("driver-reload", "--force")
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	back("a reload of the driver")

	n.StopDaemon()
	order("reset", "0")
	if got := onGPU(truth(t, n), 0); got != "" {
		t.Fatalf("instances outlived a reset: %s", got)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	back("a reset while the daemon did not run")

	order("fault", "add", "DeviceGetMemoryInfo*", "fail", "--code", "15", "--gpu", "0", "--times", "-1")
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "the GPU is not reported as lost", func(s *api.Status) bool { return s.GPUs[0].State == "lost" })
	order("fault", "clear")
	order("reset", "0")
	if r := n.CLI(soon(t), "gpu", "retry", "0"); r.Code != 0 {
		t.Logf("gpu retry exits with %d: %s", r.Code, r.Err) // It may already be restored.
	}
	back("a reset of a GPU that was lost")

	order("reset", "0") // While the daemon runs, as an administrator destroys instances by hand.
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	s := awaitStatus(t, n, "the missing instance is not reported", func(s *api.Status) bool { return hasCondition(s, "drift", "GPU 0") })
	if got := onGPU(truth(t, n), 0); got != "" {
		t.Errorf("an instance that was destroyed by hand was created again: %s, %+v", got, s.Node.Conditions)
	}
}

// A GPU that hangs at boot blocks neither the layouts of the other GPUs nor the daemon.
func TestAHungGPUDoesNotHangTheBoot(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := startHasty(t, quick)
	spec := replaced(t, shared, "tenants:", "  - {select: {index: 1}, mode: mig, mig: {layout: [7g.40gb]}}\ntenants:")
	apply(t, n, spec)
	was, hung := truth(t, n), status(t, n).GPUs[1].UUID
	n.StopDaemon()
	for _, order := range [][]string{{"reboot"}, {"fault", "add", "Device*", "hang", "--gpu", "1", "--times", "-1"}} {
		if err := n.Ctl(soon(t), nil, order...); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	err := harness.Await(soon(t), 20*time.Millisecond, "the layout of the other GPU is not restored", func() (bool, error) {
		return onGPU(truth(t, n), 0) == onGPU(was, 0), nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, daemonLog(n))
	}
	awaitChange(t, n)
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "cut", "--", "true"); r.Code != 0 {
		t.Errorf("no lease gets an instance of the GPU that answers: %s", r.Err)
	}
	s := awaitStatus(t, n, "the GPU that hangs is not reported", func(s *api.Status) bool {
		return slices.ContainsFunc(s.GPUs, func(g api.GPUStatus) bool { return g.State == "stuck" })
	})
	for _, g := range s.GPUs {
		if stuck := g.State == "stuck"; stuck != (g.UUID == hung) {
			t.Errorf("GPU %d is %s: %s", g.Index, g.State, g.Reason)
		}
	}
	// The driver does not report the index of a GPU that hangs: it is that of the last apply.
	if !hasCondition(s, "gpu", "GPU 1: ") {
		t.Errorf("the GPU is not named: %+v", s.Node.Conditions)
	}
	if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "gpu", "retry", "1"); r.Code != 0 {
		t.Errorf("gpu retry exits with %d: %s", r.Code, r.Err)
	}
	err = harness.Await(soon(t), 20*time.Millisecond, "its layout is not restored when it answers", func() (bool, error) {
		return truth(t, n) == was, nil
	})
	if err != nil {
		t.Errorf("%v:\n got %s\nwant %s\n%s", err, truth(t, n), was, daemonLog(n))
	}
}

// In a virtual machine whose GPU only the host can reset, the mode stays set, and the next boot is all that the layout needs.
func TestResetThatCannotBeDone(t *testing.T) {
	t.Parallel()
	n := patient(t, replaced(t, quick, "gpus:", "no_reset: true\ngpus:"))
	spec := "version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: 2}, mode: mig, mig: {layout: [3g.20gb]}}\n"
	r := n.CLIIn(soon(t), spec, "apply", "-f", "-", "--allow-reset")
	if r.Code != api.ExitDegraded || !strings.Contains(r.Err, "is turned on by the next boot of the host") ||
		!strings.Contains(r.Err, "systemctl reboot") {
		t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	s := awaitChange(t, n)
	if g := s.GPUs[2]; g.State != "held" || !strings.Contains(g.Reason, "next boot") {
		t.Errorf("GPU 2 is %s: %s", g.State, g.Reason)
	}
	if m := gpusOf(t, n)[2].MIG; m.Current || !m.Pending {
		t.Errorf("its MIG mode is %+v", m)
	}
	if r := n.CLIIn(
		soon(t), spec, "apply", "-f", "-",
	); r.Code != api.ExitDegraded || !strings.Contains(r.Out+r.Err, "waits for a boot of the host") ||
		!strings.Contains(r.Err, "hint: 'systemctl reboot' makes the mode current") {
		t.Errorf("the second apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	n.StopDaemon()
	if err := n.Ctl(soon(t), nil, "reboot"); err != nil {
		t.Fatal(err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	err := harness.Await(soon(t), 20*time.Millisecond, "the layout is not created after the boot", func() (bool, error) {
		return strings.Contains(n.CLI(soon(t), "mig", "list").Out, "3g.20gb") && status(t, n).GPUs[2].State == "ok", nil
	})
	if err != nil {
		t.Errorf("%v\n%s", err, daemonLog(n))
	}
}

// Before a reset the GPUs on the same NVLink bridge and their leases are named. Only the one GPU is reset.
func TestWhatABridgeJoins(t *testing.T) {
	t.Parallel()
	n := patient(t, replaced(t, quick, "gpus:", "nvlink: {bridges: [[0, 1], [2, 3]]}\ngpus:"))
	const before = "version: v1\nnode: {enforce: on}\ntenants: [{name: red, grants: [{name: whole, exclusive: 1}]}]\ngpus:\n  - {select: {index: 3}, mode: exclusive}\n"
	const after = before + "  - {select: {index: 2}, mode: mig, mig: {layout: [3g.20gb]}}\n"
	links := func() (calls uint64) {
		var s struct {
			Counters struct {
				Calls map[string]uint64 `json:"calls"`
			} `json:"counters"`
		}
		if err := n.Ctl(soon(t), &s, "status"); err != nil {
			t.Fatal(err)
		}
		for name, k := range s.Counters.Calls {
			if strings.Contains(name, "NvLink") && !strings.Contains(name, "ErrorCounter") { // The health reads the errors of links.
				calls += k
			}
		}
		return calls
	}
	apply(t, n, before)
	_, id := begin(t, n, "red", "whole", n.Burn("--memory", "1GiB", "--hold")...)
	awaitChange(t, n)
	if calls := links(); calls != 0 {
		t.Errorf("links were queried %d times without a reset", calls)
	}
	gpus := gpusOf(t, n)
	joined := "NVLink joins it with GPU 3 (" + string(gpus[3].Identity.UUID) + "), which must be idle too; no fabric manager runs"
	r := n.CLIIn(soon(t), after, "apply", "-f", "-")
	if r.Code != api.ExitNeedsPermission || !strings.Contains(r.Err, "--allow-reset") ||
		!strings.Contains(r.Err, "a reset of GPU 2: "+joined) {
		t.Errorf("without --allow-reset apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	for _, args := range [][]string{{"--allow-reset", "--check"}, {"--allow-reset"}} {
		r := n.CLIIn(soon(t), after, append([]string{"apply", "-f", "-"}, args...)...)
		if r.Code != 0 || !strings.Contains(r.Out+r.Err, joined) || !strings.Contains(r.Out+r.Err, ") is in use by "+id) ||
			!strings.Contains(r.Out+r.Err, "must be idle for the reset of GPU 2") {
			t.Errorf("apply %v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
		}
	}
	for i, g := range gpusOf(t, n) {
		if reset := g.Resets != gpus[i].Resets; reset != (i == 2) {
			t.Errorf("GPU %d was reset: %v", i, reset)
		}
	}
	s := awaitChange(t, n)
	if leaseByID(s, id) == nil {
		t.Errorf("the lease on the other GPU of the bridge has ended\n%s", daemonLog(n))
	}
	explained(t, s, "after the reset of a GPU on a bridge")
}

// If NVSwitches join all GPUs, the message says so and names what is missing for the reset.
func TestWhatSwitchesJoin(t *testing.T) {
	t.Parallel()
	t.Run("the fabric manager runs", func(t *testing.T) {
		t.Parallel()
		testSwitches(t, "switches: 6", "the fabric manager runs (pid ")
	})
	t.Run("it does not run", func(t *testing.T) {
		t.Parallel()
		testSwitches(
			t,
			"switches: 6, no_fabric_manager: true",
			"the fabric manager does not run: after a reset no GPU can be used until it runs",
		)
	})
}

func testSwitches(t *testing.T, nvlink, want string) {
	t.Helper()
	n := patient(t, replaced(t, quick, "gpus:", "nvlink: {"+nvlink+"}\ngpus:"))
	const spec = "version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: 2}, mode: mig, mig: {layout: [3g.20gb]}}\n"
	r := n.CLIIn(soon(t), spec, "apply", "-f", "-", "--allow-reset", "--check")
	if r.Code != 0 || !strings.Contains(r.Out+r.Err, "6 NVSwitches of this host join it with every other GPU") ||
		!strings.Contains(r.Out+r.Err, want) {
		t.Errorf("apply --check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}
