package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// A refusal is one sentence with the object, the place and a hint. It has its own exit code and changes nothing.
func TestRefusedSpecs(t *testing.T) {
	n := start(t, quick)
	for _, c := range []struct {
		name, spec string
		code       int
		says       []string
	}{
		{"unknown key", "version: v1\ngpus:\n  - select: {index: 0}\n    mode: exclusive\n    colour: red\n", api.ExitUsage, []string{":5:", "colour"}},
		{"bad quantity", "version: v1\nnode: {gpu_memory_reserve: 1GB}\n", api.ExitUsage, []string{":2:", "node.gpu_memory_reserve", "GiB"}},
		{"tenant twice", "version: v1\ntenants:\n  - name: red\n  - name: red\n", api.ExitUsage, []string{":4:", "tenants[1].name", "red"}},
		{"key twice", "version: v1\nversion: v1\n", api.ExitUsage, []string{":2:", "version"}},
		{"two documents", "version: v1\n---\nversion: v1\n", api.ExitUsage, []string{"document"}},
		{"no such GPU", "version: v1\ngpus:\n  - select: {index: 9}\n    mode: exclusive\n", api.ExitUsage, []string{":3:", "gpus[0].select.index", "9"}},
		{"profile that this GPU lacks", "version: v1\nnode: {enforce: on}\ngpus:\n  - select: {index: 0}\n    mode: mig\n    mig: {layout: [3g.40gb]}\n", api.ExitInfeasible, []string{"3g.40gb", "3g.20gb"}},
		{"layout that cannot be placed", "version: v1\nnode: {enforce: on}\ngpus:\n  - select: {index: 0}\n    mode: mig\n    mig: {layout: [4g.20gb, 3g.20gb, 1g.5gb]}\n", api.ExitInfeasible, []string{"1g.5gb"}},
		{"mode that needs a reset", "version: v1\nnode: {enforce: on}\ngpus:\n  - select: {index: 2}\n    mode: mig\n    mig: {layout: [3g.20gb]}\n", api.ExitNeedsPermission, []string{"reset", "--allow-reset"}},
		{"more memory than there is", replaced(t, small, "30%, gpu_memory: 8GiB", "30%, gpu_memory: 80GiB"), api.ExitInfeasible, []string{"tenants[0].grants[1].timeslice.gpu_memory", "80 GiB", "38"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.CLIIn(soon(t), c.spec, "apply", "-f", "-")
			if r.Code != c.code {
				t.Errorf("exit code %d, want %d", r.Code, c.code)
			}
			for _, s := range c.says {
				if !strings.Contains(r.Err, s) {
					t.Errorf("the refusal lacks %q:\n%s", s, r.Err)
				}
			}
			if strings.Contains(r.Err, "cannot: cannot") || strings.Count(r.Err, "cannot ") > 2 {
				t.Errorf("the refusal stutters:\n%s", r.Err)
			}
		})
	}
	if got := writes(t, n); got != 0 {
		t.Errorf("the refusals made %d writes", got)
	}
	if g := status(t, n).Node.Generation; g != 0 {
		t.Errorf("generation %d after refusals only", g)
	}
}

func TestDriverTroubles(t *testing.T) {
	for _, c := range []struct {
		name, file string
		says       []string // in the output of doctor
		code       int      // of apply
	}{
		{"driver not loaded", "no-driver.yaml", []string{"not loaded", "modprobe"}, api.ExitUnreachable},
		{"library and module differ", "mismatch.yaml", []string{"different versions", "reboot"}, api.ExitUnreachable},
		{"no GPUs", "no-gpus.yaml", []string{"no GPUs"}, api.ExitUsage},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := start(t, c.file)
			r := n.CLI(soon(t), "doctor")
			for _, s := range c.says {
				if !strings.Contains(r.Out, s) {
					t.Errorf("doctor does not report %q:\n%s", s, r.Out)
				}
			}
			if r := n.CLI(soon(t), "status"); r.Code != 0 {
				t.Errorf("status exited with %d: %s", r.Code, r.Err)
			}
			if r := n.CLIIn(soon(t), small, "apply", "-f", "-"); r.Code != c.code {
				t.Errorf("apply exited with %d, want %d: %s", r.Code, c.code, r.Err)
			}
		})
	}
}

// A hanging GPU does not block the others.
func TestHungCall(t *testing.T) {
	n := startHasty(t, quick)
	apply(t, n, small)
	if err := n.Ctl(soon(t), nil, "fault", "add", "DeviceGetMemoryInfo*", "hang", "--gpu", "3", "--times", "-1"); err != nil {
		t.Fatal(err)
	}
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	s := status(t, n)
	if s.GPUs[3].State != "stuck" {
		t.Errorf("the hung GPU is %q: %s", s.GPUs[3].State, s.GPUs[3].Reason)
	}
	for i := range 3 {
		if s.GPUs[i].State != "ok" {
			t.Errorf("GPU %d is %s: %s", i, s.GPUs[i].State, s.GPUs[i].Reason)
		}
	}
	if r := n.CLI(soon(t), "status"); r.Code != 0 || r.Milliseconds > 2000 {
		t.Errorf("status took %d ms and exited with %d", r.Milliseconds, r.Code)
	}
	if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "gpu", "retry", "3"); r.Code != 0 {
		t.Fatalf("gpu retry exited with %d: %s", r.Code, r.Err)
	}
	if s := status(t, n); s.GPUs[3].State != "ok" {
		t.Errorf("after the retry the GPU is %q: %s", s.GPUs[3].State, s.GPUs[3].Reason)
	}
}

func TestDaemonNotRunning(t *testing.T) {
	n := &harness.Node{Bin: bin(t), Dir: t.TempDir()}
	r := n.CLI(soon(t), "status")
	if r.Code != api.ExitUnreachable || !strings.Contains(r.Err, "systemctl") {
		t.Errorf("exit code %d: %s", r.Code, r.Err)
	}
}

func TestCallerWithoutARoleIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	n := start(t, quick)
	for _, args := range [][]string{{"status"}, {"get"}, {"gpu", "retry", "0"}, {"run", "--", "true"}, {"events"}, {"config", "reload"}} {
		cmd := exec.CommandContext(soon(t), filepath.Join(n.Bin, "gpushare"), args...)
		cmd.Env = n.Environ()
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput() // The exit code is checked.
		want := api.ExitDenied
		if args[0] == "run" {
			want = 125
		}
		if code := cmd.ProcessState.ExitCode(); code != want || !strings.Contains(string(out), "may not") {
			t.Errorf("%v without a role exited with %d: %s", args, code, out)
		}
	}
}

func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	n := newNode(t, quick)
	state := t.TempDir()
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		n.StopDaemon()
		if err := unix.Unmount(state, 0); err != nil {
			t.Error(err)
		}
	})
	n.Settings = map[string]string{"state_dir": state}
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, "version: v1\nnode: {enforce: on}\n")
	fill, err := os.Create(filepath.Join(state, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	defer fill.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = fill.Write(block)
	}
	r := n.CLIIn(soon(t), small, "apply", "-f", "-")
	if r.Code != api.ExitUnreachable || !strings.Contains(r.Err, "no space") {
		t.Errorf("apply on a full disk exited with %d: %s", r.Code, r.Err)
	}
	if got := writes(t, n); got != 0 {
		t.Errorf("the refused apply made %d writes", got)
	}
	if err := fill.Truncate(0); err != nil {
		t.Fatal(err)
	}
	apply(t, n, small)
}

// A second daemon on the same state is refused.
func TestOneDaemonANode(t *testing.T) {
	n := start(t, quick)
	second := &harness.Node{Bin: n.Bin, Dir: n.Dir, File: n.File}
	err := second.StartDaemon(soon(t))
	if err == nil {
		second.KillDaemon()
		t.Fatal("a second daemon starts on the same state")
	}
	if !strings.Contains(err.Error(), "another gpushared") {
		t.Errorf("the refusal has no reason: %v", err)
	}
	if r := n.CLI(soon(t), "status"); r.Code != 0 {
		t.Errorf("the first daemon does not answer any more: %s", r.Err)
	}
}

func TestWrongSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpushared.yaml")
	if err := os.WriteFile(file, []byte("converge_evry: 30s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(soon(t), filepath.Join(bin(t), "gpushared"), "--settings", file)
	out, _ := cmd.CombinedOutput() // The exit code is checked.
	if code := cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(string(out), "converge_evry") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
