package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// instances is a spec in which two tenants share one MIG instance through MPS.
const instances = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 2g.10gb], mps: [3g.20gb]}}
tenants:
  - name: red
    grants:
      - {name: part, mig: 3g.20gb, mps: {share: 40%, gpu_memory: 8GiB}}
      - {name: cut, mig: 2g.10gb}
  - name: blue
    grants:
      - {name: part, mig: 3g.20gb, mps: {share: 40%, gpu_memory: 8GiB}}
`

// noInstanceMPS is the same layout without a shared instance.
const noInstanceMPS = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 2g.10gb]}}
tenants:
  - name: red
    grants:
      - {name: cut, mig: 3g.20gb}
`

// instanceOf is the instance of a profile on GPU 0.
func instanceOf(t *testing.T, s *api.Status, profile string) *api.InstanceStatus {
	t.Helper()
	if m := s.GPUs[0].MIG; m != nil {
		if i := slices.IndexFunc(m.Instances, func(in api.InstanceStatus) bool { return in.Profile == profile }); i >= 0 {
			return &m.Instances[i]
		}
	}
	t.Fatalf("GPU 0 has no %s instance: %+v", profile, s.GPUs[0].MIG)
	return nil
}

// controlDaemons lists the records of control daemons.
func controlDaemons(t *testing.T, n *harness.Node) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(n.Dir, "run", "mps", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// instanceIsDrained uses the commands of MPS on a shared instance that has clients of two leases.
func instanceIsDrained(t *testing.T, n *harness.Node, in *api.InstanceStatus, lease string) {
	t.Helper()
	name := fmt.Sprintf("0:%d", in.Placement.Start)
	for _, as := range []string{name, in.UUIDs[0]} {
		if r := n.CLI(
			soon(t), "mps", "show", as,
		); r.Code != 0 || !strings.Contains(r.Out, "3g.20gb at") || !strings.Contains(r.Out, lease) ||
			!strings.Contains(r.Out, "default threads") {
			t.Errorf("mps show %s exits with %d: %s%s", as, r.Code, r.Out, r.Err)
		}
	}
	for _, as := range []string{name, in.UUIDs[0]} {
		if r := n.CLI(soon(t), "mps", "log", as, "--lines", "500"); r.Code != 0 || !strings.Contains(r.Out, "NEW SERVER") {
			t.Errorf("mps log %s exits with %d: %s%s", as, r.Code, r.Out, r.Err)
		}
		if r := n.CLI(soon(t), "mps", "restart", as); r.Code != api.ExitConflict || !strings.Contains(r.Err, lease) ||
			!strings.Contains(r.Err, "mps restart "+name+" --force") {
			t.Errorf("a restart of %s with clients exits with %d: %s", as, r.Code, r.Err)
		}
		if r := n.CLI(soon(t), "mps", "drain", as); r.Code != 0 || !strings.Contains(r.Out, lease) {
			t.Errorf("mps drain %s exits with %d: %s%s", as, r.Code, r.Out, r.Err)
		}
		if m := instanceOf(t, status(t, n), "3g.20gb").MPS; m.Drained == nil || m.State != "running" {
			t.Errorf("drained as %s: %+v", as, m)
		}
		if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "part", "--", "true"); r.Code != 125 ||
			!strings.Contains(r.Err, "its MPS is drained") {
			t.Errorf("a lease gets it: %d %s", r.Code, r.Err)
		}
		if r := n.CLI(soon(t), "mps", "resume", as); r.Code != 0 {
			t.Errorf("mps resume %s exits with %d: %s%s", as, r.Code, r.Out, r.Err)
		}
		if m := instanceOf(t, status(t, n), "3g.20gb").MPS; m.Drained != nil {
			t.Errorf("resumed as %s: %+v", as, m)
		}
	}
	for as, want := range map[string]string{"0": "in its MIG instances", "0:99": "no MIG instance at", "1:0": "", "3": "does not run MPS"} {
		if r := n.CLI(soon(t), "mps", "drain", as); r.Code == 0 || !strings.Contains(r.Err, want) {
			t.Errorf("mps drain %s exits with %d: %s", as, r.Code, r.Err)
		}
	}
	before := instanceOf(t, status(t, n), "3g.20gb").MPS.PID
	if r := n.CLI(soon(t), "mps", "restart", name, "--check", "--force"); r.Code != 0 ||
		!strings.Contains(r.Out, "restart MPS in the instance at") {
		t.Errorf("the check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if now := instanceOf(t, status(t, n), "3g.20gb").MPS.PID; now != before {
		t.Errorf("the check has restarted it: %d, before %d", now, before)
	}
}

// Two tenants have a share of one MIG instance. Its control daemon is started with the instance, restarted when it was killed,
// started again when the instance is created again, and stopped when the key is removed.
func TestTwoTenantsShareAnInstance(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, instances)
	s := status(t, n)
	explained(t, s, "after the apply")
	in := instanceOf(t, s, "3g.20gb")
	if in.MPS == nil || in.MPS.State != "running" || in.MPS.PID == 0 {
		t.Fatalf("the instance has MPS %+v\n%s", in.MPS, daemonLog(n))
	}
	if other := instanceOf(t, s, "2g.10gb"); other.MPS != nil {
		t.Errorf("an instance that is not shared has MPS: %+v", other.MPS)
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", in.MPS.PID))
	if err != nil {
		t.Fatal(err)
	}
	if visible := "CUDA_VISIBLE_DEVICES=" + in.UUIDs[0]; !slices.Contains(strings.Split(string(env), "\x00"), visible) {
		t.Errorf("the control daemon has no %s", visible)
	}

	red, redID := begin(t, n, "red", "part", n.Burn("--memory", "2GiB", "--hold")...)
	blue, blueID := begin(t, n, "blue", "part", n.Burn("--memory", "2GiB", "--hold")...)
	s = awaitStatus(t, n, "the clients are not listed", func(s *api.Status) bool { return instanceOf(t, s, "3g.20gb").MPS.Clients == 2 })
	in = instanceOf(t, s, "3g.20gb")
	if want := []string{redID, blueID}; !sameSet(in.Leases, want) {
		t.Errorf("the instance has the leases %v, want %v", in.Leases, want)
	}
	explained(t, s, "with clients")
	for _, id := range []string{redID, blueID} {
		if l := leaseByID(s, id); l == nil || !slices.Equal(l.Devices, in.UUIDs) || l.Kind != api.ModeMPS {
			t.Errorf("lease %s: %+v", id, l)
		}
	}
	if r := n.CLI(soon(t), "explain", redID); r.Code != 0 || !strings.Contains(r.Out, "3g.20gb") {
		t.Errorf("explain: %s%s", r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "mps", "list"); r.Code != 0 || !strings.Contains(r.Out, "3g.20gb at") {
		t.Errorf("mps list: %s%s", r.Out, r.Err)
	}
	instanceIsDrained(t, n, in, redID)
	// More than the limit of the grant, and more than the instance has.
	if r := n.CLI(
		soon(t),
		append([]string{"run", "-q", "-t", "red", "--grant", "part", "--"}, n.Burn("--memory", "9GiB")...)...); r.Code == 0 {
		t.Error("a client has more memory than its grant")
	}
	if r := n.CLIIn(soon(t), noInstanceMPS, "apply", "-f", "-"); r.Code != 5 {
		t.Errorf("the key is removed while leases use it: %d %s%s", r.Code, r.Out, r.Err)
	}
	red.Stop()
	blue.Stop()
	awaitStatus(t, n, "the leases do not end", func(s *api.Status) bool { return len(s.Leases) == 0 })
	for _, as := range []string{fmt.Sprintf("0:%d", in.Placement.Start), in.UUIDs[0]} {
		if r := n.CLI(soon(t), "mps", "restart", as, "--force"); r.Code != 0 {
			t.Fatalf("mps restart %s exits with %d: %s%s", as, r.Code, r.Out, r.Err)
		}
		restarted := instanceOf(t, status(t, n), "3g.20gb").MPS
		if restarted.State != "running" || restarted.PID == in.MPS.PID {
			t.Errorf("after the restart of %s: %+v, before pid %d", as, restarted, in.MPS.PID)
		}
		in.MPS = restarted
	}

	if err := syscall.Kill(in.MPS.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := in.MPS.PID
	s = awaitStatus(t, n, "the control daemon is not started again", func(s *api.Status) bool {
		m := instanceOf(t, s, "3g.20gb").MPS
		return m.State == "running" && m.PID != killed && m.PID != 0
	})
	first := instanceOf(t, s, "3g.20gb")

	apply(t, n, replaced(t, instances, "[3g.20gb, 2g.10gb], mps", "[4g.20gb, 3g.20gb], mps"))
	s = awaitStatus(t, n, "the control daemon of the moved instance does not run", func(s *api.Status) bool {
		m := instanceOf(t, s, "3g.20gb").MPS
		return m != nil && m.State == "running"
	})
	explained(t, s, "after a change of the layout")
	if again := instanceOf(t, s, "3g.20gb"); again.Placement != first.Placement && again.MPS.PID == first.MPS.PID {
		t.Error("an instance at another place has the same control daemon")
	}
	if found := controlDaemons(t, n); len(found) != 1 {
		t.Errorf("control daemons: %q", found)
	}

	apply(t, n, noInstanceMPS)
	s = status(t, n)
	explained(t, s, "without the key")
	if in := instanceOf(t, s, "3g.20gb"); in.MPS != nil {
		t.Errorf("MPS is left: %+v", in.MPS)
	}
	if found := controlDaemons(t, n); len(found) != 0 {
		t.Errorf("control daemons are left: %q", found)
	}
	before := writes(t, n)
	apply(t, n, noInstanceMPS)
	if after := writes(t, n); after != before {
		t.Errorf("a second apply writes %d times", after-before)
	}
}

func sameSet(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// The daemon is killed at points of the change that shares an instance, and of the one that ends it: afterwards the control daemons
// are those of the spec in force.
func TestDaemonKilledWhileAnInstanceIsShared(t *testing.T) {
	enumeration.Long(t)
	n := newNode(t, quick)
	n.Bin = buildWithFaults(t)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	specs, layouts, daemons := []string{instances, noInstanceMPS}, []string{}, []int{1, 0}
	for _, spec := range specs {
		apply(t, n, spec)
		layouts = append(layouts, withoutPlaces(truth(t, n)))
	}
	kills := 0
	for k := 2; k < 40; k += 9 {
		for to := range specs {
			if killedAt(t, n, k, specs[to], layouts[to]) {
				kills++
			} else {
				apply(t, n, specs[to])
			}
			if found := controlDaemons(t, n); len(found) != daemons[to] {
				t.Errorf("kill %d: control daemons %q, want %d", k, found, daemons[to])
			}
			if t.Failed() {
				return
			}
		}
	}
	if kills == 0 {
		t.Error("no kill happened")
	}
}
