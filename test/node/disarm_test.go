package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/test/harness"
)

// disarmed is a spec with two tenants, and what is enforced for each.
const disarmed = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [2, 3]}, mode: timeslice}
tenants:
  - {name: red, tasks: 500, grants: [{name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}]}
  - {name: blue, grants: [{name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}, {name: rest, timeslice: {share: 5%, gpu_memory: 1GiB}}]}
`

// refusedFor checks that an apply is refused, that its refusal has one line for each lease and for no other, and that it changed nothing.
// The check of the same spec is refused for the same, after its whole plan.
func refusedFor(t *testing.T, n *harness.Node, spec, step string, ids, others []string) {
	t.Helper()
	before := status(t, n)
	for _, args := range []string{"apply -f -", "apply -f - --check"} {
		r := n.CLIIn(soon(t), spec, strings.Fields(args)...)
		if r.Code != api.ExitConflict {
			t.Fatalf("%s exits with %d: %s%s", args, r.Code, r.Out, r.Err)
		}
		for _, id := range ids {
			lines := 0
			for line := range strings.Lines(r.Err) {
				if strings.HasPrefix(line, "  "+id+" of ") && strings.Contains(line, "sleep 600") {
					lines++
				}
			}
			if lines != 1 {
				t.Errorf("%s has %d lines about %s:\n%s", args, lines, id, r.Err)
			}
		}
		for _, id := range others {
			if strings.Contains(r.Err, id) {
				t.Errorf("%s names %s, which nothing ends:\n%s", args, id, r.Err)
			}
		}
		if !strings.Contains(r.Err, "--force") {
			t.Errorf("%s names no way on:\n%s", args, r.Err)
		}
		if check := strings.HasSuffix(args, "--check"); check != strings.Contains(r.Out, step) {
			t.Errorf("%s prints the plan: %v\n%s", args, !check, r.Out)
		}
	}
	if now := status(
		t,
		n,
	); now.Node.Generation != before.Node.Generation || now.Node.Enforce != "on" ||
		len(now.Leases) != len(before.Leases) {
		t.Errorf("a refused apply changed the node: %+v", now.Node)
	}
}

// An apply that ends the enforcement, or takes the grants of running leases away, is refused as unmanage is, and names every lease.
func TestDisarmingNeedsConsent(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, disarmed)
	var red, blue []string
	for i := range 4 {
		_, r := begin(t, n, "red", "part", "sleep", "600")
		red = append(red, r)
		if i < 2 {
			_, b := begin(t, n, "blue", "part", "sleep", "600")
			blue = append(blue, b)
		}
	}
	all := append(append([]string{}, red...), blue...)
	slicesOfRed, cgroups := "the cgroup slice of red", len(slicesOf(t, n)) > 0
	step := func(s string) string {
		if cgroups {
			return s
		}
		return "stop lease"
	}
	for name, c := range map[string]struct {
		spec        string
		step        string
		ids, others []string
	}{
		"nothing but the version": {"version: v1\n", step(slicesOfRed), all, nil},
		"observe":                 {strings.Replace(disarmed, "enforce: on", "enforce: observe", 1), "only to the spec", all, nil},
		"without a tenant":        {disarmed[:strings.Index(disarmed, "  - {name: blue")], "stop lease " + blue[0], blue, red},
		"without a grant": {
			strings.Replace(disarmed, "{name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}, {name: rest", "{name: rest", 1),
			"stop lease " + blue[0], blue, red,
		},
		"as another mode": {strings.Replace(disarmed, "mode: timeslice", "mode: exclusive", 1), "stop lease " + red[0], all, nil},
	} {
		t.Run(name, func(t *testing.T) { refusedFor(t, n, c.spec, c.step, c.ids, c.others) })
	}
	r := n.CLI(soon(t), "unmanage")
	for _, id := range all {
		if !strings.Contains(r.Err, "\n  "+id+" of ") {
			t.Errorf("unmanage has no line about %s:\n%s", id, r.Err)
		}
	}
	if r := n.CLIIn(soon(t), "version: v1\n", "apply", "-f", "-", "--check", "--json"); r.Code != api.ExitConflict ||
		strings.Count(r.Err, `"continues": true`) != len(all) || !strings.Contains(r.Err, `"plan": {`) {
		t.Errorf("--json exits with %d: %s", r.Code, r.Err)
	}
}

// With --force the enforcement ends and the leases go on. What the kernel keeps is said as such, of leases and of tenants that the spec
// does not have any more, until unmanage removes it.
func TestDisarmedNodeSaysWhatTheKernelKeeps(t *testing.T) {
	t.Parallel()
	needsDevicePrograms(t)
	n := start(t, quick)
	apply(t, n, disarmed)
	_, id := begin(t, n, "red", "part", "sleep", "600")
	if len(slicesOf(t, n)) == 0 {
		t.Error("the tenants have no slices")
	}
	rules := func(name string) map[string]api.Rule {
		t.Helper()
		e, err := n.Client().Explain(soon(t), name)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]api.Rule{}
		for _, r := range e.Rules {
			out[r.What] = r
		}
		return out
	}
	enforced := rules(id)
	if !enforced["devices"].Enforced {
		t.Fatalf("no device rules are enforced: %s", enforced["devices"].Reason)
	}
	if r := n.CLIIn(
		soon(t),
		"version: v1\n",
		"apply",
		"-f",
		"-",
		"--force",
	); r.Code != 0 ||
		!strings.Contains(r.Err, "'gpushare unmanage'") {
		t.Fatalf("with --force it exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if s := status(t, n); leaseByID(s, id) == nil {
		t.Error("the lease was ended")
	}
	kept := rules(id)
	if r := kept["devices"]; !r.Enforced || !strings.Contains(r.By, "'gpushare unmanage'") || r.Desired != enforced["devices"].Desired {
		t.Errorf("the device rules are in force, and explain says %+v", r)
	}
	for _, what := range []string{"GPU time", "GPU memory"} {
		if r := kept[what]; r.Enforced {
			t.Errorf("nothing enforces the %s, and explain says %+v", what, r)
		}
	}
	if r := rules("red")["devices of part"]; !r.Enforced || !strings.Contains(r.By, "read back") {
		t.Errorf("of the removed tenant explain says %+v", r)
	}
	for what, was := range enforced {
		if strings.HasPrefix(what, "tasks") && was.Enforced && (!kept[what].Enforced || fmt.Sprint(kept[what].By) == "") {
			t.Errorf("the limit %s is in force, and explain says %+v", what, kept[what])
		}
	}
	if r := n.CLI(soon(t), "unmanage", "--force"); r.Code != 0 {
		t.Fatalf("unmanage exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if _, err := n.Client().Explain(soon(t), "red"); err == nil {
		t.Error("after unmanage explain knows a tenant that the spec does not have")
	}
}

// needsDevicePrograms skips a test where the kernel attaches no device programs to cgroups.
func needsDevicePrograms(t *testing.T) {
	t.Helper()
	needsFreezer(t)
	dir, err := os.MkdirTemp(unified(t), "gpushare-probe-") // Several tests ask at a time.
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	if err := device.Probe(dir); err != nil {
		t.Skipf("needs device programs: %v", err)
	}
}
