package server_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/hostroot"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/leftover"
)

// built are the shim and the client, built once for all tests.
var built struct {
	once sync.Once
	dir  string
	skip string
	err  error
}

func TestMain(m *testing.M) {
	code := leftover.Main(m)
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// build returns the directory with the libraries and the client.
func build(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if _, err := exec.LookPath("gcc"); err != nil {
			built.skip = "gcc is missing: cannot build the shim"
			return
		}
		var out []byte
		if built.dir, built.err = os.MkdirTemp("", "gpusim-shim-"); built.err != nil {
			return
		}
		if out, built.err = exec.Command("sh", "../build.sh", built.dir).CombinedOutput(); built.err != nil {
			built.skip = ""
			println(string(out))
			return
		}
		header, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
		if err != nil {
			built.err = err
			return
		}
		out, built.err = exec.Command("gcc", "-std=gnu11", "-Wall", "-Werror", "-Wno-deprecated-declarations",
			"-isystem", filepath.Join(strings.TrimSpace(string(header)), "pkg/nvml"),
			"-o", filepath.Join(built.dir, "client"), "testdata/client.c", "-ldl", "-lpthread").CombinedOutput()
		if built.err != nil {
			println(string(out))
		}
	})
	if built.skip != "" {
		t.Skip(built.skip)
	}
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

// running is a served node with its host root.
type running struct {
	node *gpusim.Node
	root string
	lib  string
	stop func()
}

// serve serves a node for as long as the test runs.
func serve(t *testing.T, file string) *running {
	t.Helper()
	lib := build(t)
	f, err := nodefile.Decode([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	n, err := gpusim.New(f.Config, engine.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	host, err := hostroot.Write(root, n, hostroot.Options{Library: filepath.Join(lib, "libnvidia-ml.so."+f.Driver)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- server.New(n, slog.New(slog.NewTextHandler(io.Discard, nil))).Serve(ctx, root, func() { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		host.Close()
		n.Close()
	})
	t.Cleanup(stop)
	return &running{n, root, lib, stop}
}

// client prepares a run of the client on the node.
func (r *running) client(t *testing.T, env []string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(r.lib, "client"), args...)
	cmd.Env = append([]string{"LD_LIBRARY_PATH=" + filepath.Join(r.root, "usr/lib")}, env...)
	return cmd
}

func (r *running) run(t *testing.T, env []string, args ...string) string {
	t.Helper()
	out, err := r.client(t, env, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("client %v: %v\n%s", args, err, out)
	}
	return string(out)
}

const twoA100 = `
driver: "580"
gpus: [{model: A100-SXM4-40GB, count: 2}]
`

func TestAClientOfTheLibrary(t *testing.T) {
	enumeration.Long(t)
	for _, driver := range []string{"535", "580", "615"} {
		t.Run(driver, func(t *testing.T) {
			r := serve(t, strings.Replace(twoA100, "580", driver, 1))
			want := `gpus 2
name NVIDIA A100-SXM4-40GB
short buffer 7
pci 00000000:07:00.0 0000:07:00.0 bus 7 id 20B010DE
memory adds up 1, first version counts reserved 1
wrong version 25
mig 1 1 activation 0
profile MIG 3g.20gb id 9 slices 3 max 2 sm 42 memory 19968
placements 2: 0:4 4:4
occupied 23
uuid MIG- walked to the same 1
attributes sm 42 gi 3 ci 3 memory 19968
instances 1: id 2 profile 9 at 4:4
in use 19
stale 2
fields 0 0, 3
processes 0 0
null 2
after 1
`
			if diff := cmp.Diff(want, r.run(t, nil, "lifecycle")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNVLinksOfTheLibrary(t *testing.T) {
	enumeration.Long(t)
	const gpus = `driver: "535"
nvlink: {bridges: [[0, 2]], switches: 2}
gpus: [{model: A100-SXM4-40GB, count: 3}, {model: H100-SXM5-80GB}, {model: RTX-PRO-6000-96GB}]
`
	want := `gpu 0 link 0 end 0 pci 00000000:47:00.0 0000:47:00.0 bus 47 id 20B010DE
gpu 0 link 1 end 0 pci 00000000:47:00.0 0000:47:00.0 bus 47 id 20B010DE
gpu 0 link 12 none 3 end 3 pci 3
gpu 0 link 18 none 2 end 2 pci 2
gpu 1 link 0 end 2 pci 00000000:C4:00.0 0000:C4:00.0 bus c4 id 00000000
gpu 1 link 1 end 2 pci 00000000:C5:00.0 0000:C5:00.0 bus c5 id 00000000
gpu 1 link 12 none 3 end 3 pci 3
gpu 1 link 18 none 2 end 2 pci 2
gpu 2 link 0 end 0 pci 00000000:07:00.0 0000:07:00.0 bus 7 id 20B010DE
gpu 2 link 1 end 0 pci 00000000:07:00.0 0000:07:00.0 bus 7 id 20B010DE
gpu 2 link 12 none 3 end 3 pci 3
gpu 2 link 18 none 2 end 2 pci 2
gpu 3 link 0 end 2 pci 00000000:C4:00.0 0000:C4:00.0 bus c4 id 00000000
gpu 3 link 1 end 2 pci 00000000:C5:00.0 0000:C5:00.0 bus c5 id 00000000
gpu 3 link 12 end 2 pci 00000000:C4:00.0 0000:C4:00.0 bus c4 id 00000000
gpu 3 link 18 none 2 end 2 pci 2
gpu 4 link 0 none 3 end 3 pci 3
gpu 4 link 1 none 3 end 3 pci 3
gpu 4 link 12 none 3 end 3 pci 3
gpu 4 link 18 none 2 end 2 pci 2
null 2
after 1
`
	if diff := cmp.Diff(want, serve(t, gpus).run(t, nil, "links")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = `gpu 0 link 0 down 0 end 3 pci 3
gpu 0 link 1 down 0 end 3 pci 3
gpu 0 link 12 none 3 end 3 pci 3
gpu 0 link 18 none 2 end 2 pci 2
null 2
after 1
`
	if diff := cmp.Diff(want, serve(t, "gpus: [{model: A100-SXM4-40GB}]").run(t, nil, "links")); diff != "" {
		t.Errorf("links that are down (-want +got):\n%s", diff)
	}
}

func TestThreadsDoNotWaitForEachOther(t *testing.T) {
	r := serve(t, twoA100)
	want := "nothing yet 10\ncalls done\nevent 0x100 data 0 gi 13\nafter 1\n"
	if diff := cmp.Diff(want, r.run(t, nil, "threads")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAForkedChildHasItsOwnConnection(t *testing.T) {
	r := serve(t, twoA100)
	want := "child done\nparent done, child 0\nafter 1\n"
	if diff := cmp.Diff(want, r.run(t, nil, "fork")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSignalsEndNoConnection interrupts a thread between and in its calls: its process stays initialised.
func TestSignalsEndNoConnection(t *testing.T) {
	r := serve(t, twoA100)
	if got, want := r.run(t, nil, "interrupted"), "calls done\nafter 1\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSocketsEndAtExec(t *testing.T) {
	r := serve(t, twoA100)
	if got := r.run(t, nil, "exec"); got != "sockets 0\n" {
		t.Errorf("%q", got)
	}
}

func TestVariantsExportWhatTheirDriverDoes(t *testing.T) {
	symbols := []string{
		"symbols", "nvmlInit_v2", "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetRunningProcessDetailList",
		"nvmlDeviceGetGpuInstanceProfileInfoByIdV", "nvmlDeviceSetMemoryLimits_v1", "gpusim_ask",
	}
	for driver, want := range map[string]string{
		"535": "lacks nvmlDeviceGetProcessesUtilizationInfo\nlacks nvmlDeviceGetRunningProcessDetailList\nlacks nvmlDeviceGetGpuInstanceProfileInfoByIdV\nlacks nvmlDeviceSetMemoryLimits_v1\nlacks gpusim_ask\n",
		"580": "lacks nvmlDeviceSetMemoryLimits_v1\nlacks gpusim_ask\n",
		"615": "lacks gpusim_ask\n",
	} {
		r := serve(t, strings.Replace(twoA100, "580", driver, 1))
		if diff := cmp.Diff(want, r.run(t, nil, symbols...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", driver, diff)
		}
	}
}

func TestInitSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"ready":    {twoA100, "before 1\ninit 0\n"},
		"absent":   {twoA100 + "state: absent", "before 1\ninit 9\n"},
		"mismatch": {twoA100 + "state: mismatch", "before 1\ninit 18\n"},
		"no GPUs":  {`driver: "580"`, "before 1\ninit 28\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := serve(t, c.file).run(t, nil, "init"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestTheEnvironmentNamesAnotherNode(t *testing.T) {
	a, b := serve(t, twoA100), serve(t, `gpus: [{model: A30-24GB}]`)
	out, err := a.client(t, []string{"GPUSIM_ROOT=" + b.root}, "lifecycle").CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "gpus 1\nname NVIDIA A30\n") {
		t.Errorf("%v\n%s", err, out)
	}
	missing := filepath.Join(t.TempDir(), "nowhere")
	if got := a.run(t, []string{"GPUSIM_ROOT=" + missing}, "init"); got != "before 1\ninit 9\n" {
		t.Errorf("%q", got)
	}
}

// openClient is a client that keeps a GPU open and makes a call for each line that it receives.
type openClient struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func openGPU(t *testing.T, r *running) *openClient {
	t.Helper()
	h := &openClient{t: t, cmd: r.client(t, nil, "hold")}
	var err error
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.in.Close(); _ = h.cmd.Wait() })
	h.expect("holding")
	return h
}

func (h *openClient) expect(want string) {
	h.t.Helper()
	if got, err := h.out.ReadString('\n'); err != nil || strings.TrimSpace(got) != want {
		h.t.Fatalf("client printed %q (%v), want %q", got, err, want)
	}
}

func (h *openClient) call(want string) {
	h.t.Helper()
	if _, err := io.WriteString(h.in, "\n"); err != nil {
		h.t.Fatal(err)
	}
	h.expect(want)
}

func TestOpenGPUIsNotReset(t *testing.T) {
	r := serve(t, twoA100)
	h := openGPU(t, r)
	h.call("count 0")
	reset := server.Command{Do: server.DoReset, GPU: "0"}
	if _, err := server.Control(t.Context(), r.root, reset); err == nil {
		t.Error("a GPU in use was reset")
	}
	if _, err := server.Control(t.Context(), r.root, server.Command{Do: server.DoReset, GPU: "1"}); err != nil {
		t.Errorf("the other GPU: %v", err)
	}
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.cmd.Wait()
	eventually(t, func() error { _, err := server.Control(t.Context(), r.root, reset); return err })
}

func TestRebootInvalidatesClients(t *testing.T) {
	r := serve(t, twoA100)
	h := openGPU(t, r)
	if _, err := server.Control(t.Context(), r.root, server.Command{Do: server.DoReboot}); err != nil {
		t.Fatal(err)
	}
	h.call("count 1") // uninitialised
}

// eventually polls for a condition without an event: that the server has noticed a closed socket.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
