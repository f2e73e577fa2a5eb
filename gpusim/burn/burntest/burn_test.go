package burntest_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpusim/burn/burntest"
)

var builder burntest.Builder

func TestMain(m *testing.M) {
	code := m.Run()
	builder.Remove()
	os.Exit(code)
}

// program is one running burn.
type program struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
}

func start(t *testing.T, n *burntest.Node, env []string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.CommandContext(t.Context(), builder.Path(t), args...)}
	p.cmd.Env = append([]string{"GPUSIM_ROOT=" + n.Root}, env...)
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *program) line(t *testing.T, want string) {
	t.Helper()
	got, err := p.out.ReadString('\n')
	if err != nil || !strings.Contains(got, want) {
		t.Fatalf("burn printed %q (%v), want a line with %q; stderr: %s", got, err, want, p.stderr.String())
	}
}

func (p *program) ends(t *testing.T, code int, message string) {
	t.Helper()
	rest := new(strings.Builder)
	if _, err := p.out.WriteTo(rest); err != nil {
		t.Fatal(err)
	}
	err := p.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("burn: %v", err)
	} else if got := p.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("burn ended with %d (%v), want %d; stderr: %s", got, exit, code, p.stderr.String())
	}
	if all := rest.String() + p.stderr.String(); !strings.Contains(all, message) {
		t.Errorf("burn printed %q, want %q in it", all, message)
	}
}

func TestRunsForItsTime(t *testing.T) {
	n := burntest.Start(t)
	p := start(t, n, nil, "--memory", "1.5GiB", "--kernel", "2ms", "--queue", "16", "--seconds", "0.4")
	p.line(t, "ready")
	if n.Used() != 3<<29 {
		t.Errorf("%d bytes are allocated once it is ready", n.Used())
	}
	p.ends(t, 0, "allocated 1.5 GiB")
	busy := n.Engine.Busy()[p.cmd.Process.Pid]
	if busy < 300*time.Millisecond || busy > 500*time.Millisecond {
		t.Errorf("it kept the GPU busy for %v of 0.4 s", busy)
	}
}

func TestSignals(t *testing.T) {
	n := burntest.Start(t)
	t.Run("SIGTERM ends it", func(t *testing.T) {
		p := start(t, n, nil, "--kernel", "1s", "--queue", "1")
		p.line(t, "ready")
		p.cmd.Process.Signal(syscall.SIGTERM)
		p.ends(t, 143, "stopped by SIGTERM")
	})
	t.Run("idle", func(t *testing.T) {
		p := start(t, n, nil, "--hold")
		p.line(t, "ready")
		p.cmd.Process.Signal(syscall.SIGINT)
		p.ends(t, 130, "stopped by SIGINT")
	})
	t.Run("ignored", func(t *testing.T) {
		p := start(t, n, nil, "--hold", "--ignore-term")
		p.line(t, "ready")
		p.cmd.Process.Signal(syscall.SIGTERM)
		p.line(t, "ignoring SIGTERM")
		p.cmd.Process.Kill()
		p.ends(t, -1, "")
	})
}

func TestOutOfMemory(t *testing.T) {
	n := burntest.Start(t)
	n.SetMemory(1 << 30)
	start(t, n, nil, "--memory", "2GiB").ends(t, 2, "out of memory")
	p := start(t, n, nil, "--memory", "512MiB", "--grow", "4GiB/s", "--kernel", "1ms", "--queue", "4")
	p.line(t, "ready")
	p.ends(t, 2, "out of memory")
}

func TestRefused(t *testing.T) {
	tests := []struct {
		name    string
		env     []string
		args    []string
		prepare func(t *testing.T, root string)
		code    int
		message string
	}{
		{name: "no such GPU", args: []string{"--gpu", "nope"}, code: 1, message: "CUDA error 100"},
		{name: "nothing visible", env: []string{"CUDA_VISIBLE_DEVICES="}, code: 1, message: "CUDA error 100"},
		{name: "ordinal beyond what is visible", env: []string{"CUDA_VISIBLE_DEVICES=GPU-a"}, args: []string{"--gpu", "1"}, code: 1, message: "CUDA error 101"},
		{name: "no node", prepare: func(t *testing.T, root string) {
			if err := os.Remove(filepath.Join(root, "dev/nvidia0")); err != nil {
				t.Fatal(err)
			}
		}, code: 1, message: "cannot open"},
		{name: "bad size", args: []string{"--memory", "4 bananas"}, code: 64, message: `bad --memory "4 bananas"`},
		{name: "bad size followed by a good option", args: []string{"--memory", "x", "--queue", "3"}, code: 64, message: "bad --memory"},
		{name: "argument", args: []string{"python"}, code: 64, message: "python"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n := burntest.Start(t)
			if test.prepare != nil {
				test.prepare(t, n.Root)
			}
			start(t, n, test.env, test.args...).ends(t, test.code, test.message)
		})
	}
}

func TestDeniedByDeviceRules(t *testing.T) {
	if os.Geteuid() == 0 {
		// Root ignores file modes. Run as user 65534, who can read the path of the root but not open this device node.
		n := burntest.Start(t)
		for _, dir := range []string{n.Root, filepath.Dir(builder.Path(t))} {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Join(n.Root, "run/gpusim/cuda.sock"), 0o666); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"nvidiactl", "nvidia-uvm"} {
			if err := os.Chmod(filepath.Join(n.Root, "dev", f), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Join(n.Root, "dev/nvidia0"), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &program{cmd: exec.CommandContext(t.Context(), builder.Path(t))}
		p.cmd.Env = []string{"GPUSIM_ROOT=" + n.Root}
		p.cmd.Stderr = &p.stderr
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.out = bufio.NewReader(out)
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.ends(t, 77, "denied by the device rules")
		return
	}
	n := burntest.Start(t)
	if err := os.Chmod(filepath.Join(n.Root, "dev/nvidia0"), 0); err != nil {
		t.Fatal(err)
	}
	start(t, n, nil).ends(t, 77, "denied by the device rules")
}

func TestVisibleDevices(t *testing.T) {
	tests := []struct{ name, env, gpu, want string }{
		{"first visible", "GPU-aaa,GPU-bbb", "", "GPU-aaa"},
		{"ordinal of the visible", "GPU-aaa,GPU-bbb", "1", "GPU-bbb"},
		{"MIG", "MIG-ccc", "", "MIG-ccc"},
		{"a UUID does not need to be in the list", "GPU-aaa", "GPU-zzz", "GPU-zzz"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n := burntest.Start(t)
			args := []string{"--hold"}
			if test.gpu != "" {
				args = append(args, "--gpu", test.gpu)
			}
			p := start(t, n, []string{"CUDA_VISIBLE_DEVICES=" + test.env}, args...)
			p.line(t, "ready")
			if got := n.Contexts()[p.cmd.Process.Pid]; got != "CTX gpu="+test.want+" mps=- mpspid=0 limit=0" {
				t.Errorf("it requested %q", got)
			}
			p.cmd.Process.Kill()
			p.ends(t, -1, "")
		})
	}
}

func TestLostNode(t *testing.T) {
	done := make(chan *program, 1)
	t.Run("node", func(t *testing.T) {
		n := burntest.Start(t)
		cmd := exec.Command(builder.Path(t), "--hold")
		p := &program{cmd: cmd}
		cmd.Env = []string{"GPUSIM_ROOT=" + n.Root}
		cmd.Stderr = &p.stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.out = bufio.NewReader(out)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.line(t, "ready")
		done <- p
	})
	(<-done).ends(t, 1, "the GPU is lost")
}
