package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

const external = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [0, 1]}, mode: external, owner: slurm}
tenants:
  - name: red
    members: {users: [root]}
`

// A GPU in mode external is only observed: no apply, restart, boot or unmanage changes it, not even instances that gpushare
// created before.
func TestExternalIsNeverTouched(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, replaced(t, everything, "select: {index: 0}", "select: {index: [0]}"))
	cut := truth(t, n)
	if !strings.Contains(cut, "GPU 0") {
		t.Fatalf("no instance was created: %s", cut)
	}
	if r := n.CLIIn(soon(t), external, "apply", "-f", "-", "--check"); r.Code != 0 || strings.Contains(r.Out, "GPU 0") ||
		strings.Contains(r.Out, "GPU 1") {
		t.Errorf("an apply would change an external GPU: %s%s", r.Out, r.Err)
	}
	apply(t, n, external)
	before, modes := writes(t, n), computeModes(t, n)
	untouched := func(when string) {
		t.Helper()
		if err := n.Client().Reload(soon(t)); err != nil {
			t.Fatal(err)
		}
		s := awaitChange(t, n)
		if got := writes(t, n); got != before {
			t.Errorf("%s: %d writes", when, got-before)
		}
		for _, g := range s.GPUs[:2] {
			if g.Mode != api.ModeExternal || g.Owner != "slurm" || g.State != "ok" {
				t.Errorf("%s: GPU %d is %s of %q: %s %s", when, g.Index, g.Mode, g.Owner, g.State, g.Reason)
			}
		}
		for _, c := range s.Node.Conditions {
			if c.Kind != "not-enforced" {
				t.Errorf("%s: %s: %s", when, c.Kind, c.Message)
			}
		}
	}
	untouched("after an apply")
	if got := truth(t, n); got != cut {
		t.Errorf("the GPUs are partitioned as\n     %s\nwant %s", got, cut)
	}
	if r := n.CLI(soon(t), "status"); !strings.Contains(r.Out, "managed by slurm") {
		t.Errorf("status says:\n%s", r.Out)
	}
	for _, args := range [][]string{{"--kind", "exclusive"}, {"--kind", "mig:3g.20gb"}, {"--kind", "timeslice"}} {
		if r := n.CLI(soon(t), append(append([]string{"run", "-q", "-t", "red"}, args...), "--", "true")...); r.Code != 125 {
			t.Errorf("run %v exits with %d: %s", args, r.Code, r.Err)
		}
	}
	grab := replaced(t, external, "    members: {users: [root]}\n", "    grants: [{name: grab, exclusive: 1, gpus: {index: 0}}]\n")
	if r := n.CLIIn(soon(t), grab, "apply", "-f", "-"); r.Code == 0 || strings.Contains(r.Err, "unknown key") {
		t.Errorf("a grant on an external GPU is accepted, or the spec is wrong: %s%s", r.Out, r.Err)
	}
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	untouched("after a restart")
	n.StopDaemon()
	if err := n.Ctl(soon(t), nil, "reboot"); err != nil {
		t.Fatal(err)
	}
	before = writes(t, n) // The counters restart at a boot.
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	untouched("after a boot")
	if r := n.CLI(soon(t), "unmanage", "--all"); r.Code != 0 {
		t.Errorf("unmanage exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if got := writes(t, n); got != before || computeModes(t, n) != modes {
		t.Errorf("unmanage made %d writes; the compute modes are %s, they were %s", got-before, computeModes(t, n), modes)
	}
}

// doctor finds another scheduler of managed GPUs.
func TestDoctorFindsAnExternalScheduler(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, everything)
	for name, text := range map[string]string{"proc/4711/comm": "slurmd\n", "etc/slurm/gres.conf": "Name=gpu File=/dev/nvidia[2-3]\n"} {
		file := filepath.Join(n.Root(), name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if r := n.CLI(soon(t), "doctor"); !strings.Contains(r.Out, "slurmd (pid 4711) schedules GPUs 2, 3") ||
		!strings.Contains(r.Out, "owner: slurm") {
		t.Errorf("doctor says:\n%s", r.Out)
	}
}
