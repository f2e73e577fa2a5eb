package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/leftover"
)

var built struct {
	once sync.Once
	dir  string
	out  []byte
	err  error
}

func TestMain(m *testing.M) {
	code := leftover.Main(m)
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// programs builds gpusim and its C parts into one directory, like make.
func programs(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is missing: cannot build the shim")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "gpusim-"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", built.dir, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if built.out, built.err = build.CombinedOutput(); built.err != nil {
			return
		}
		built.out, built.err = exec.Command("sh", "../../gpusim/build.sh", built.dir).CombinedOutput()
	})
	if built.err != nil {
		t.Fatalf("%v\n%s", built.err, built.out)
	}
	return built.dir
}

// start serves a node in a separate process and returns its root and the process.
func start(t *testing.T, file string, args ...string) (string, *exec.Cmd) {
	t.Helper()
	dir := programs(t)
	root := t.TempDir()
	cmd := exec.Command(
		filepath.Join(dir, "gpusim"),
		append([]string{"serve", "--node", "../../testdata/nodes/" + file, "--root", root}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v: %s", line, err, stderr.String())
	}
	return root, cmd
}

func gpusimRun(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(programs(t), "gpusim"), args...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestANodeFromStartToEnd(t *testing.T) {
	enumeration.Long(t)
	root, serving := start(t, "mixed.yaml")
	list, code := gpusimRun(t, "exec", "--root", root, "--", "nvidia-smi", "-L")
	if lines := strings.Split(strings.TrimSpace(list), "\n"); code != 0 || len(lines) != 5 ||
		!strings.HasPrefix(lines[4], "GPU 4: NVIDIA A30 (UUID: GPU-") {
		t.Errorf("exit %d: %s", code, list)
	}
	if out, code := gpusimRun(t, "exec", "--root", root, "--", "sh", "-c", "echo $GPUSIM_ROOT; exit 7"); code != 7 || out != root+"\n" {
		t.Errorf("exit %d: %q", code, out)
	}
	if out, code := gpusimRun(t, "exec", "--root", root, "--", "nvidia-smi", "--gpu-reset", "-i", "0"); code != 0 {
		t.Errorf("reset, exit %d: %s", code, out)
	}
	if out, code := gpusimRun(
		t, "ctl", "--root", root, "fault", "add", "DeviceGetMemoryInfo", "fail", "--nth", "3", "--code", "19",
	); code != 0 ||
		out != "1\n" {
		t.Errorf("fault, exit %d: %s", code, out)
	}
	out, code := gpusimRun(t, "ctl", "--root", root, "status", "--window", "10s")
	var s server.Status
	if err := json.Unmarshal([]byte(out), &s); code != 0 || err != nil || len(s.GPUs) != 5 || s.GPUs[0].Resets != 1 ||
		s.Faults[0].Code != gpusim.InUse {
		t.Errorf("status, exit %d, %v: %s", code, err, out)
	}
	if out, code := gpusimRun(t, "ctl", "--root", root, "reset", "99"); code != exitFailed || !strings.Contains(out, "99") {
		t.Errorf("reset of an unknown GPU, exit %d: %s", code, out)
	}
	if out, code := gpusimRun(t, "serve", "--node", "../../testdata/nodes/mixed.yaml", "--root", root); code != exitFailed ||
		!strings.Contains(out, "another process") {
		t.Errorf("a second server of the root, exit %d: %s", code, out)
	}
	if err := serving.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serving.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if out, code := gpusimRun(t, "ctl", "--root", root, "status"); code != exitFailed {
		t.Errorf("status of an ended node, exit %d: %s", code, out)
	}
}

func TestBurnUsesTheNode(t *testing.T) {
	enumeration.Long(t)
	root, _ := start(t, "mixed.yaml")
	out, code := gpusimRun(
		t, "exec", "--root", root, "--", filepath.Join(programs(t), "gpusim"), "burn", "--gpu", "4", "--memory", "1GiB", "--kernel",
		"1ms", "--seconds", "0.3",
	)
	if code != 0 || !strings.HasPrefix(out, "ready\n") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestCommandsAreParsed(t *testing.T) {
	for line, want := range map[string]server.Command{
		"status --window 10s":                   {Do: server.DoStatus, Window: 10 * time.Second},
		"fault add any hang --gpu 2 --times -1": {Do: server.DoFaultAdd, Fault: &gpusim.Fault{Call: "any", Do: "hang", GPU: "2", Nth: 1, Times: -1}},
		"fault add write hang --reads-answer":   {Do: server.DoFaultAdd, Fault: &gpusim.Fault{Call: "write", Do: "hang", Nth: 1, Times: 1, ReadsAnswer: true}},
		"fault clear 3":                         {Do: server.DoFaultClear, ID: 3},
		"driver-reload --force":                 {Do: server.DoDriverReload, Force: true},
		"driver-install 600.1 1g.5gb=1g.6gb":    {Do: server.DoInstall, Version: "600.1", Values: []string{"1g.5gb=1g.6gb"}},
		"xid 0 31 --pid 7 --name python":        {Do: server.DoXID, GPU: "0", XID: 31, PID: 7, Name: "python"},
		"latency DeviceSetMigMode 1.5s":         {Do: server.DoLatency, Call: "DeviceSetMigMode", Latency: 1500 * time.Millisecond},
		"latency":                               {Do: server.DoLatency},
		"reset GPU-1":                           {Do: server.DoReset, GPU: "GPU-1"},
	} {
		got, err := parseCommand(strings.Fields(line), stdio{err: io.Discard})
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
	for _, line := range []string{"", "fault", "fault add any", "xid 0 many", "latency X soon", "dance", "status --colour"} {
		if _, err := parseCommand(strings.Fields(line), stdio{err: io.Discard}); err == nil {
			t.Errorf("%q was parsed", line)
		}
	}
}

func TestUsageIsAnError(t *testing.T) {
	for _, args := range [][]string{{"gpusim"}, {"gpusim", "dance"}, {"gpusim", "serve"}, {"gpusim", "serve", "--root", "/x"}, {"gpusim", "exec", "--root", "/x"}, {"gpusim", "ctl"}} {
		if code := run(t.Context(), args, nil, stdio{strings.NewReader(""), io.Discard, io.Discard}); code != exitUsage {
			t.Errorf("%v: exit %d", args, code)
		}
	}
}

func TestTheEnvironmentOfAProgram(t *testing.T) {
	got := nodeEnvironment([]string{"A=1", "PATH=/bin", "GPUSIM_ROOT=/old"}, "/node")
	want := []string{"A=1", "GPUSIM_ROOT=/node", "LD_LIBRARY_PATH=/node/usr/lib", "PATH=/node/usr/bin:/bin"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
