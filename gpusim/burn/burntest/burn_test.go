package burntest_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpusim/burn/burntest"
	"github.com/gpushare/gpushare/test/leftover"
)

var builder burntest.Builder

func TestMain(m *testing.M) {
	code := leftover.Main(m)
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

func (p *program) line(t *testing.T, want string) string {
	t.Helper()
	got, err := p.out.ReadString('\n')
	if err != nil || !strings.Contains(got, want) {
		t.Fatalf("burn printed %q (%v), want a line with %q; stderr: %s", got, err, want, p.stderr.String())
	}
	return got
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
	n, began := burntest.Start(t), time.Now()
	p := start(t, n, nil, "--memory", "1.5GiB", "--kernel", "2ms", "--queue", "16", "--seconds", "0.4")
	p.line(t, "ready")
	if n.Used() != 3<<29 {
		t.Errorf("%d bytes are allocated once it is ready", n.Used())
	}
	p.ends(t, 0, "allocated 1.5 GiB")
	ran := time.Since(began)
	busy := n.Engine.Busy()[p.cmd.Process.Pid]
	// On a busy host it cannot keep its queue full, so only two queues of kernels are certain.
	if ran < 400*time.Millisecond || busy < 2*16*2*time.Millisecond || busy > 500*time.Millisecond {
		t.Errorf("it ran for %v and kept the GPU busy for %v of 0.4 s", ran, busy)
	}
}

// requests waits until processes have made n requests of these kinds, and returns them.
func requests(t *testing.T, node *burntest.Node, n int, kinds ...string) []burntest.Request {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		var out []burntest.Request
		for _, r := range node.Requests() {
			if kind, _, _ := strings.Cut(r.Line, " "); slices.Contains(kinds, kind) {
				out = append(out, r)
			}
		}
		if len(out) >= n {
			return out[:n]
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests of %v within 30 s, want %d: %v", len(out), kinds, n, out)
		}
	}
}

func TestWorksAndThinks(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		period time.Duration // from launch to launch, at least
	}{
		{"synchronous", []string{"--sync", "--kernel", "5ms", "--queue", "2"}, 10 * time.Millisecond},
		{"host-bound", []string{"--think", "30ms", "--kernel", "5ms", "--queue", "2"}, 40 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := burntest.Start(t)
			start(t, n, nil, c.args...).line(t, "ready")
			var last time.Time
			for i, r := range requests(t, n, 20, "LAUNCH", "SYNC") {
				if want := []string{"LAUNCH 5000 2", "SYNC"}[i%2]; r.Line != want {
					t.Fatalf("request %d is %q, want %q", i, r.Line, want)
				}
				if i%2 == 0 {
					if !last.IsZero() && r.At.Sub(last) < c.period {
						t.Errorf("launched %v after the launch before, want at least %v", r.At.Sub(last), c.period)
					}
					last = r.At
				}
			}
		})
	}
}

// TestAFrozenProcessDoesNotThinkOrGrow: thinking and growing are work of the host.
func TestAFrozenProcessDoesNotThinkOrGrow(t *testing.T) {
	const frozen = 600 * time.Millisecond
	freeze := func(p *program) (thawed time.Time) {
		p.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(frozen) // the time that passes is the subject
		thawed = time.Now()
		p.cmd.Process.Signal(syscall.SIGCONT)
		return thawed
	}
	t.Run("thinks", func(t *testing.T) {
		n := burntest.Start(t)
		p := start(t, n, nil, "--kernel", "1ms", "--queue", "1", "--think", "400ms")
		p.line(t, "ready")
		worked := requests(t, n, 2, "LAUNCH", "SYNC")[1].At // it thinks from then on, or a millisecond later
		thought := time.Since(worked)
		thawed := freeze(p)
		next := requests(t, n, 2, "LAUNCH")[1].At
		if rest, want := next.Sub(thawed), 400*time.Millisecond-thought; rest < want-50*time.Millisecond {
			t.Errorf("it thought for %v before a freeze of %v and for %v after it, want 400 ms in all", thought, frozen, rest)
		}
	})
	t.Run("grows", func(t *testing.T) {
		n := burntest.Start(t)
		p := start(t, n, nil, "--hold", "--grow", "1GiB/s")
		p.line(t, "ready")
		requests(t, n, 4, "ALLOC")
		thawed := freeze(p)
		before := n.Used()
		count := len(n.Requests())
		for _, r := range requests(t, n, count+20, "QUEUE", "ALLOC")[count:] {
			if at := r.At.Sub(thawed); at < 0 {
				t.Errorf("%s %v before the thaw", r.Line, -at)
			}
		}
		grown, passed := n.Used()-before, time.Since(thawed)
		if most := uint64(passed.Seconds()*float64(1<<30)) + 32<<20; grown > most {
			t.Errorf("grew by %d MiB in %v after the freeze, want at most %d MiB at 1 GiB/s", grown>>20, passed, most>>20)
		}
	})
}

// TestJitterIsSeeded: the same seed gives the same sequence, another one another, and all stay in the range.
// TestAnswersRequests: requests arrive at random, also while the process works or is frozen, and each takes as long as it waited.
func TestAnswersRequests(t *testing.T) {
	const frozen = 600 * time.Millisecond
	n, began := burntest.Start(t), time.Now()
	p := start(t, n, nil, "--kernel", "5ms", "--queue", "2", "--every", "20ms", "--seed", "3")
	p.line(t, "ready")
	request := func() time.Duration {
		var ms float64
		if line := p.line(t, "request "); line != "" {
			if _, err := fmt.Sscanf(line, "request %f ms", &ms); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
		return time.Duration(ms * float64(time.Millisecond))
	}
	for range 100 {
		if d := request(); d < 10*time.Millisecond {
			t.Fatalf("a request with 10 ms of kernels took %v", d)
		}
	}
	if ran := time.Since(began); ran < 1400*time.Millisecond {
		t.Errorf("100 requests, one in 20 ms, arrived within %v", ran)
	}
	for i, r := range requests(t, n, 20, "LAUNCH", "SYNC") {
		if want := []string{"LAUNCH 5000 2", "SYNC"}[i%2]; r.Line != want {
			t.Fatalf("request %d is %q, want %q", i, r.Line, want)
		}
	}
	p.cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(frozen) // the time that passes is the subject
	p.cmd.Process.Signal(syscall.SIGCONT)
	var longest time.Duration
	for range 60 { // what was printed before the freeze comes first
		longest = max(longest, request())
	}
	if longest < frozen/2 {
		t.Errorf("the longest request around a freeze of %v took %v", frozen, longest)
	}
	again := start(t, n, nil, "--every", "0ms")
	again.ends(t, 64, `bad --every "0ms"`)
}

func TestJitterIsSeeded(t *testing.T) {
	run := func(args ...string) (lines []string) {
		n := burntest.Start(t)
		p := start(t, n, nil, append([]string{"--kernel", "100us", "--queue", "10", "--jitter", "0.3"}, args...)...)
		p.line(t, "ready")
		for _, r := range requests(t, n, 40, "QUEUE", "LAUNCH") {
			lines = append(lines, r.Line)
			var a, b int
			if k, _ := fmt.Sscanf(r.Line, "LAUNCH %d %d", &a, &b); k == 2 && (a < 70 || a > 130 || b < 1 || b > 13) {
				t.Errorf("%s is out of range", r.Line)
			}
			if k, _ := fmt.Sscanf(r.Line, "QUEUE %d", &a); k == 1 && (a < 7 || a > 14) {
				t.Errorf("%s is out of range", r.Line)
			}
		}
		return lines
	}
	for _, mode := range [][]string{nil, {"--sync"}} {
		a, b, c := run(append(mode, "--seed", "5")...), run(append(mode, "--seed", "5")...), run(append(mode, "--seed", "6")...)
		if !slices.Equal(a, b) {
			t.Errorf("%v: one seed gave %q and %q", mode, a, b)
		}
		if slices.Equal(a, c) || a[3] == a[5] && a[5] == a[7] {
			t.Errorf("%v: two seeds gave %q and %q", mode, a, c)
		}
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
	// 512 MiB at 4 GiB/s are 0.125 s; on a busy host it grows more slowly.
	var seconds float64
	line := p.line(t, "out of memory after ")
	if _, err := fmt.Sscanf(line, "out of memory after %f s", &seconds); err != nil || seconds < 0.1 {
		t.Errorf("burn printed %q: %v", line, err)
	}
	p.ends(t, 2, "out of memory (CUDA error 2)")
	for _, r := range requests(t, n, 8, "ALLOC")[2:] { // the first two are --memory
		var bytes int
		if _, err := fmt.Sscanf(r.Line, "ALLOC %d", &bytes); err != nil || bytes < 1<<20 || bytes > 16<<20 {
			t.Errorf("%s: want 1 to 16 MiB", r.Line)
		}
	}
}

// What grows up to an amount goes on with it, and does not end with the memory of the GPU.
func TestGrowsUpToAnAmount(t *testing.T) {
	n := burntest.Start(t)
	n.SetMemory(1 << 30)
	p := start(t, n, nil, "--memory", "64MiB", "--hold", "--grow", "64GiB/s", "--most", "128MiB", "--seconds", "1")
	p.line(t, "ready")
	p.ends(t, 0, "allocated 128.0 MiB")
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
		{
			name:    "ordinal beyond what is visible",
			env:     []string{"CUDA_VISIBLE_DEVICES=GPU-a"},
			args:    []string{"--gpu", "1"},
			code:    1,
			message: "CUDA error 101",
		},
		{
			name:    "a second MIG device",
			env:     []string{"CUDA_VISIBLE_DEVICES=MIG-a,MIG-b"},
			args:    []string{"--gpu", "1"},
			code:    1,
			message: "CUDA error 101",
		},
		{name: "no node", prepare: func(t *testing.T, root string) {
			if err := os.Remove(filepath.Join(root, "dev/nvidia0")); err != nil {
				t.Fatal(err)
			}
		}, code: 1, message: "cannot open"},
		{name: "bad size", args: []string{"--memory", "4 bananas"}, code: 64, message: `bad --memory "4 bananas"`},
		{name: "bad size followed by a good option", args: []string{"--memory", "x", "--queue", "3"}, code: 64, message: "bad --memory"},
		{name: "bad think", args: []string{"--think", "30"}, code: 64, message: `bad --think "30"`},
		{name: "much jitter", args: []string{"--jitter", "1"}, code: 64, message: `bad --jitter "1"`},
		{name: "negative seed", args: []string{"--seed", "-1"}, code: 64, message: `bad --seed "-1"`},
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
