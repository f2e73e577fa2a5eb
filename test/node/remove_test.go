package node

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/harness"
)

// script runs a script of the package on a node, as a package manager would, with a stub for systemctl.
func script(t *testing.T, n *harness.Node, env []string, name string, args ...string) (code int, out string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, "packaging", name))
	if err != nil {
		t.Fatal(err)
	}
	fake := t.TempDir()
	if err := os.WriteFile(filepath.Join(fake, "systemctl"), []byte("#!/bin/sh\n"), 0o755); err != nil {
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

// make uninstall removes what make install installed, and nothing while restrictions are active.
func TestUninstall(t *testing.T) {
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
	if code, out := script(t, n, nil, "uninstall.sh", "", dir+"/usr"); code == 0 || !strings.Contains(out, "gpushare unmanage") || len(files(dir)) != installed {
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
