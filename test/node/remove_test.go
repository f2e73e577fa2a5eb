package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

// script runs a script of the package on a node, as a package manager would, with a stub for systemctl.
func script(t *testing.T, n *harness.Node, env []string, name string, args ...string) (code int, out string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, "packaging", name))
	if err != nil {
		t.Fatal(err)
	}
	fake := t.TempDir()
	if err := programs.Write(filepath.Join(fake, "systemctl"), "#!/bin/sh\n"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(soon(t), path, args...)
	cmd.Env = append(n.Environ(), "PATH="+fake+":"+os.Getenv("PATH"), "GPUSHARE_SETTINGS="+filepath.Join(n.Dir, "gpushared.yaml"))
	cmd.Env = append(cmd.Env, env...)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(b)
}

// The removal of a package is refused while restrictions are active, and the message lists them. An upgrade is not checked.
func TestPackageRemoval(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	environment := "GPUSHARE=" + filepath.Join(n.Bin, "gpushare")
	steps := []struct {
		name   string
		before func()
		env    string
		action []string
		refuse string // part of the message; empty: it is not refused
	}{
		{"before any spec", nil, environment, []string{"remove"}, ""},
		{"with active restrictions", func() { apply(t, n, everything) }, environment, []string{"remove"}, "stop MPS"},
		{"with active restrictions, by rpm", nil, environment, []string{"0"}, "stop MPS"},
		{"an upgrade", nil, environment, []string{"upgrade", "2.0"}, ""},
		{"an upgrade, by rpm", nil, environment, []string{"1"}, ""},
		{"an upgrade that failed", nil, environment, []string{"failed-upgrade", "1.0"}, ""},
		{"active restrictions are kept", nil, environment + "\x00GPUSHARE_KEEP_ISOLATION=1", []string{"remove"}, ""},
		{"without the program", nil, "GPUSHARE=/nowhere/gpushare", []string{"remove"}, "cannot remove the package"},
		{"without the daemon", n.KillDaemon, environment, []string{"remove"}, "restrictions are active: generation 1"},
		{"unmanaged", func() {
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
			if r := n.CLI(soon(t), "unmanage"); r.Code != 0 {
				t.Fatalf("unmanage exits with %d: %s", r.Code, r.Err)
			}
		}, environment, []string{"remove"}, ""},
		{"unmanaged, without the daemon", n.KillDaemon, environment, []string{"remove"}, ""},
	}
	for _, c := range steps {
		if c.before != nil {
			c.before()
		}
		code, out := script(t, n, strings.Split(c.env, "\x00"), "scripts/prerm", c.action...)
		if refused := code != 0; refused != (c.refuse != "") || !strings.Contains(out, c.refuse) {
			t.Errorf("%s: prerm %v exits with %d: %s", c.name, c.action, code, out)
		}
		if c.refuse != "" && !strings.Contains(out, "gpushare unmanage") {
			t.Errorf("%s: it does not name the command: %s", c.name, out)
		}
	}
}

// powerLimits are the true power limits in W of the GPUs that have one.
func powerLimits(t *testing.T, n *harness.Node) map[int]int {
	t.Helper()
	var v struct {
		GPUs []struct {
			Identity struct{ Index int }
			Health   struct {
				Power *struct{ Limit int } // in mW
			}
		}
	}
	if err := n.Ctl(soon(t), &v, "status"); err != nil {
		t.Fatal(err)
	}
	out := map[int]int{}
	for _, g := range v.GPUs {
		if p := g.Health.Power; p != nil {
			out[g.Identity.Index] = p.Limit / 1000
		}
	}
	return out
}

// A power cap is a restriction of its own: the package is not removed while one is active, and unmanage gives the limit from before
// back, also in another run of the daemon than the one that set the cap. It stays what it is after the daemon and the package have ended.
func TestPackageRemovalRestoresThePowerLimit(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	wants := func(when string, limit int) {
		t.Helper()
		if got := powerLimits(t, n); got[2] != limit {
			t.Errorf("%s the limits are %v W, and not %d W", when, got, limit)
		}
	}
	removed := func(when, refuse string) {
		t.Helper()
		code, out := script(t, n, []string{"GPUSHARE=" + filepath.Join(n.Bin, "gpushare")}, "scripts/prerm", "remove")
		if (code != 0) != (refuse != "") || !strings.Contains(out, refuse) {
			t.Errorf("%s prerm exits with %d, and not with %q: %s", when, code, refuse, out)
		}
	}
	const before, capped = 350, 300 // Another tool set the limit before.
	if err := n.Ctl(soon(t), nil, "sensor", "2", "power-limit", strconv.Itoa(before)); err != nil {
		t.Fatal(err)
	}
	for _, all := range []bool{false, true} {
		apply(
			t,
			n,
			fmt.Sprintf(
				"version: v1\nnode: {enforce: on}\ngpus: [{select: {index: 2}, mode: exclusive, health: {power_cap: %dW}}]\n", capped,
			),
		)
		wants("with a cap", capped)
		removed("with a cap", fmt.Sprintf("set the power limit to %d W", before))
		n.KillDaemon()
		removed("with a cap, without the daemon", "restrictions are active")
		wants("without the daemon", capped)
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		args := []string{"unmanage"}
		if all {
			args = append(args, "--all")
		}
		if r := n.CLI(soon(t), args...); r.Code != 0 {
			t.Fatalf("%v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
		}
		wants("unmanaged", before)
		unmanaged(t, n)
		removed("unmanaged", "")
	}
	n.StopDaemon()
	removed("without the daemon", "")
	wants("at the end", before)
}

// make uninstall removes what make install installed, and nothing while restrictions are active.
func TestUninstall(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	files := func(dir string) (out []string) {
		err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				out = append(out, p)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	dir := t.TempDir()
	if code, out := script(t, n, nil, "install.sh", dir, "/usr", n.Bin); code != 0 {
		t.Fatalf("install exits with %d: %s", code, out)
	}
	installed := len(files(dir))
	apply(t, n, everything)
	if code, out := script(t, n, nil, "uninstall.sh", "", dir+"/usr"); code == 0 || !strings.Contains(out, "gpushare unmanage") ||
		len(files(dir)) != installed {
		t.Errorf("while restrictions are active it exits with %d and leaves %d of %d files: %s", code, len(files(dir)), installed, out)
	}
	if r := n.CLI(soon(t), "unmanage"); r.Code != 0 {
		t.Fatalf("unmanage exits with %d: %s", r.Code, r.Err)
	}
	if code, out := script(t, n, nil, "uninstall.sh", "", dir+"/usr"); code != 0 {
		t.Errorf("after unmanage it exits with %d: %s", code, out)
	}
	if left := files(dir); len(left) != 1 || filepath.Base(left[0]) != "gpushared.yaml" {
		t.Errorf("%q are left, want only the settings", left)
	}
}
