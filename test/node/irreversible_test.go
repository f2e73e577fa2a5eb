package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// anonymous is a node whose driver reports neither the placement nor the UUID of a compute instance.
const anonymous = `driver: "DRIVER"
compute_reports: none
gpus:
  - {model: A100-SXM4-40GB, count: 2, mig: true}
`

// leftWith is a spec in which GPU 0 has an entry, if it has one, and GPU 1 has one instance.
func leftWith(entry string) string {
	s := "version: v1\nnode: {enforce: on, isolation: {logins: open}}\ngpus:\n  - {select: {index: 1}, mode: mig, mig: {layout: [1g.5gb]}}\n"
	if entry != "" {
		s += "  - {select: {index: 0}, " + entry + "}\n"
	}
	return s
}

// mostHints is how many hints may lead from a refusal to what was asked for.
const mostHints = 3

// until runs a command, and the commands that its refusals name, as they are printed, until one succeeds.
func until(t *testing.T, n *harness.Node, command ...string) harness.Result {
	t.Helper()
	var path []string
	for range mostHints + 1 {
		r := n.CLI(eventually(t), command...)
		path = append(path, "gpushare "+strings.Join(command, " ")+": "+r.Err)
		if r.Code == 0 {
			t.Log(strings.Join(path, "\n") + r.Out)
			return r
		}
		all := quoted.FindAllStringSubmatch(r.Err, -1)
		if len(all) != 1 {
			t.Fatalf("%d commands are named:\n%s", len(all), strings.Join(path, "\n"))
		}
		command = strings.Fields(all[0][1])[1:]
	}
	t.Fatalf("after %d hints nothing is reached:\n%s", mostHints, strings.Join(path, "\n"))
	return harness.Result{}
}

// refused is a refusal whose hint is about the spec.
func refused(t *testing.T, n *harness.Node, hint string, command ...string) {
	t.Helper()
	if r := n.CLI(soon(t), command...); r.Code == 0 || !strings.Contains(r.Err, hint) {
		t.Fatalf("%q exits with %d: %s", command, r.Code, r.Err)
	}
}

// A layout whose instances could not be created again on this driver is left on every way: what a refusal names leads there.
func TestEveryWayOutOfALayoutThatCannotBeUndone(t *testing.T) {
	enumeration.Long(t)
	const shared = "mode: mig, mig: {layout: [1c.3g.20gb, 2c.3g.20gb]}"
	for _, tt := range []struct {
		name, driver string
		steps        func(t *testing.T, n *harness.Node, apply func(spec string) []string)
		mode         bool // MIG mode stays on
		instances    []string
	}{
		{"another layout", "580", func(t *testing.T, n *harness.Node, apply func(string) []string) {
			until(t, n, apply(leftWith("mode: mig, mig: {layout: [7g.40gb]}"))...)
		}, true, []string{"7g.40gb"}},
		{"another division of the same instance", "535", func(t *testing.T, n *harness.Node, apply func(string) []string) {
			until(t, n, apply(leftWith("mode: mig, mig: {layout: [1c.4g.20gb, 1c.4g.20gb, 2c.4g.20gb, 3g.20gb]}"))...)
		}, true, []string{"3g.20gb", "4g.20gb"}},
		{"no MIG", "470", func(t *testing.T, n *harness.Node, apply func(string) []string) {
			until(t, n, append(apply(leftWith("mode: exclusive")), "--allow-reset")...)
		}, false, nil},
		{"removed although the spec names it", "580", func(t *testing.T, n *harness.Node, apply func(string) []string) {
			refused(t, n, "remove it from the layout and apply the spec", "mig", "remove", "0", "4")
			until(t, n, apply(leftWith("mode: mig, mig: {layout: [1g.5gb]}"))...)
		}, true, []string{"1g.5gb"}},
		{"removed after its entry", "535", func(t *testing.T, n *harness.Node, apply func(string) []string) {
			until(t, n, apply(leftWith(""))...)
			refused(t, n, "apply a spec with mode: mig for it first", "mig", "remove", "0", "4")
			until(t, n, apply(leftWith("mode: mig, mig: {dynamic: true, keep: 24h}"))...)
			until(t, n, "mig", "remove", "0", "4")
		}, true, nil},
		{"removed from a dynamic GPU", "580", func(t *testing.T, n *harness.Node, apply func(string) []string) {
			until(t, n, apply(leftWith("mode: mig, mig: {dynamic: true, keep: 24h}"))...)
			until(t, n, "mig", "remove", "0", "4")
		}, true, nil},
		{"its entry is removed, and what it leaves", "580", func(t *testing.T, n *harness.Node, apply func(string) []string) {
			until(t, n, apply(leftWith(""))...)
			if g := status(t, n).GPUs[0]; g.Mode != "unmanaged" || len(g.MIG.Instances) != 1 {
				t.Errorf("without its entry it is %s and has %+v", g.Mode, g.MIG)
			}
			until(t, n, "unmanage", "--all")
		}, true, nil},
		{"unmanaged", "550", func(t *testing.T, n *harness.Node, _ func(string) []string) {
			until(t, n, "unmanage", "--all")
		}, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := start(t, strings.Replace(anonymous, "DRIVER", tt.driver, 1))
			file := filepath.Join(t.TempDir(), "node.yaml")
			command := func(spec string) []string {
				if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
					t.Fatal(err)
				}
				return []string{"apply", "-f", file}
			}
			if r := until(
				t,
				n,
				command(leftWith(shared))...); !strings.Contains(
				r.Err,
				"only --force changes or removes 3g.20gb of 2c+1c at 4",
			) {
				t.Errorf("the first apply warns of nothing: %s%s", r.Out, r.Err)
			}
			if r := n.CLI(soon(t), "plan"); r.Code != 0 || !strings.Contains(r.Err, "only --force changes or removes 3g.20gb at 4") ||
				!strings.Contains(r.Err, "neither placement nor UUID") {
				t.Errorf("a plan warns of nothing: %d %s%s", r.Code, r.Out, r.Err)
			}
			tt.steps(t, n, command)
			g := status(t, n).GPUs[0]
			var names []string
			if g.MIG != nil {
				for _, in := range g.MIG.Instances {
					names = append(names, in.Profile)
				}
				slices.Sort(names)
			}
			if !slices.Equal(names, tt.instances) || (g.MIG != nil && g.MIG.Enabled) != tt.mode {
				t.Errorf("it has %q, want %q; MIG: %+v", names, tt.instances, g.MIG)
			}
			if g.State == "held" {
				t.Errorf("it is %s: %s", g.State, g.Reason)
			}
		})
	}
}
