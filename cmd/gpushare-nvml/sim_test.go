//go:build cgo

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/leftover"
)

// built are the programs for tests on the virtual node, built once.
type built struct {
	dir  string // contains gpusim with its libraries, and the worker
	skip string // the reason to skip
	err  error
}

// build builds the virtual node's programs and the worker.
var build = sync.OnceValue(func() (b built) {
	if _, err := exec.LookPath("gcc"); err != nil {
		b.skip = "gcc is missing: cannot build the virtual node's driver library"
		return b
	}
	if _, err := os.Stat("../../gpusim/shim"); err != nil {
		b.skip = "gpusim/shim is missing: cannot build the virtual node's driver library"
		return b
	}
	if b.dir, b.err = os.MkdirTemp("", "gpushare-nvml-test"); b.err != nil {
		return b
	}
	header, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		b.err = fmt.Errorf("cannot find nvml.h: %w", err)
		return b
	}
	sources, err := filepath.Glob("../../gpusim/shim/*.c")
	if err != nil {
		b.err = err
		return b
	}
	run := func(name string, args ...string) {
		if b.err != nil {
			return
		}
		cmd := exec.Command(name, args...)
		cmd.Env = os.Environ()
		if _, ok := os.LookupEnv("CGO_CFLAGS"); !ok {
			cmd.Env = append(cmd.Env, "CGO_CFLAGS=-O2 -Wno-deprecated-declarations") // the binding's warnings
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("cannot run %s: %w\n%s", name, err, out)
		}
	}
	for _, v := range []string{"470", "535", "550", "580", "615"} {
		run("gcc", append([]string{
			"-O1", "-w", "-fPIC", "-shared", "-I" + filepath.Join(strings.TrimSpace(string(header)), "pkg/nvml"),
			"-Wl,-soname,libnvidia-ml.so.1", "-Wl,--version-script=../../gpusim/shim/" + v + ".map",
			"-o", filepath.Join(b.dir, "libnvidia-ml.so."+v),
		}, append(sources, "-lpthread", "-ldl")...)...)
	}
	run("go", "build", "-o", filepath.Join(b.dir, "gpusim"), "../gpusim")
	run("go", append([]string{"build", "-o", filepath.Join(b.dir, "gpushare-nvml")}, append(raceFlags, ".")...)...)
	return b
})

func TestMain(m *testing.M) {
	code := leftover.Main(m)
	if b := build(); b.dir != "" {
		os.RemoveAll(b.dir)
	}
	os.Exit(code)
}

// simNode is a virtual node with a client of a real worker.
type simNode struct {
	*worker.Client
	t    testing.TB
	bin  string
	root string
	gpus []gpu.UUID
}

// serve starts a virtual node and a client whose worker loads the node's library.
func serve(t testing.TB, node string, d worker.Deadlines) *simNode {
	t.Helper()
	b := build()
	if b.skip != "" {
		t.Skip(b.skip)
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
	root, err := os.MkdirTemp("", "sim") // short: the path of a socket has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	file := filepath.Join(root, "node.yaml")
	if err := os.WriteFile(file, []byte(node), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(b.dir, "gpusim"), "serve", "--node", file, "--root", root)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has no state to save
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("gpusim printed %q, %v; want ready", line, err)
	}
	run := filepath.Join(root, "r")
	if err := os.Mkdir(run, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := worker.New(worker.Options{
		Command:   []string{filepath.Join(b.dir, "gpushare-nvml")},
		Env:       []string{"GPUSIM_ROOT=" + root, "GORACE=atexit_sleep_ms=0"}, // the race detector waits a second at the end
		RunDir:    run,
		Library:   filepath.Join(root, "usr/lib/libnvidia-ml.so.1"),
		HostRoot:  root,
		Launcher:  worker.Exec{Stderr: os.Stderr},
		Deadlines: d,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return &simNode{Client: c, t: t, bin: b.dir, root: root}
}

// readGPUs reads the node's GPUs.
func (n *simNode) readGPUs(ctx context.Context) gpu.NodeInfo {
	n.t.Helper()
	info, err := n.Node(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, g := range info.GPUs {
		n.gpus = append(n.gpus, g.UUID)
	}
	return info
}

// ctl runs 'gpusim ctl'.
func (n *simNode) ctl(args ...string) []byte {
	n.t.Helper()
	out, err := exec.Command(filepath.Join(n.bin, "gpusim"), append([]string{"ctl", "--root", n.root}, args...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		n.t.Fatalf("ctl %v: %v", args, err)
	}
	return out
}

// cudaContext opens a CUDA context of the test process on a virtual GPU.
func (n *simNode) cudaContext(device string) *cuda {
	n.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(n.root, "run/gpusim/cuda.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	c := &cuda{t: n.t, conn: conn, in: bufio.NewReader(conn)}
	c.send("CTX gpu=" + device + " mps=- mpspid=0 limit=0")
	return c
}

type cuda struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

// send sends one request and expects OK.
func (c *cuda) send(order string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.conn, order); err != nil {
		c.t.Fatal(err)
	}
	if line, err := c.in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "OK") {
		c.t.Fatalf("%s: %q, %v; want OK", order, line, err)
	}
}

// testContext returns a context that bounds a test.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

const (
	mixed  = "driver: \"580\"\ngpus:\n  - {model: A100-SXM4-40GB}\n  - {model: H100-SXM5-80GB}\n"
	old    = "driver: \"535\"\ngpus:\n  - {model: A100-SXM4-40GB, mig: true}\n"
	plain  = "driver: \"535\"\ngpus:\n  - {model: A100-SXM4-40GB}\n"
	hopper = "driver: \"580\"\ngpus:\n  - {model: H100-SXM5-80GB}\n  - {model: H100-SXM5-80GB}\n"
)

func TestSimNode(t *testing.T) {
	tests := []struct {
		name, node, version string
		models              []string
		lacks               string
	}{
		{"580", mixed, "580.", []string{"NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"}, ""},
		{"535", old, "535.", []string{"NVIDIA A100-SXM4-40GB"}, "nvmlDeviceGetProcessesUtilizationInfo"},
		{"no GPUs", "driver: \"580\"\ngpus: []\n", "580.", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := serve(t, tt.node, worker.Deadlines{})
			info := n.readGPUs(testContext(t))
			if !strings.HasPrefix(info.DriverVersion, tt.version) || info.CUDAVersion == 0 || info.LibraryVersion == "" {
				t.Errorf("versions %q, %q, %d; want a driver %s", info.DriverVersion, info.LibraryVersion, info.CUDAVersion, tt.version)
			}
			if want := filepath.Join(n.root, "usr/lib/libnvidia-ml.so.1"); info.Library != want {
				t.Errorf("library %q; want %q", info.Library, want)
			}
			if got := slices.Contains(info.Missing, "nvmlDeviceGetProcessesUtilizationInfo"); got != (tt.lacks != "") {
				t.Errorf("missing = %q; want %q among them", info.Missing, tt.lacks)
			}
			var models []string
			for i, g := range info.GPUs {
				models = append(models, g.Model)
				if g.Index != i || g.Error != "" || g.Memory == 0 || g.Minor < 0 || !strings.HasPrefix(string(g.UUID), "GPU-") {
					t.Errorf("GPU %d = %+v", i, g)
				}
				ids := map[string][2]uint32{"NVIDIA A100-SXM4-40GB": {0x20B010DE, 0x134F10DE}, "NVIDIA H100 80GB HBM3": {0x233010DE, 0x16C110DE}}[g.Model]
				if g.PCIDevice != ids[0] || g.PCISubsystem != ids[1] {
					t.Errorf("GPU %d has the PCI ids %#x, %#x; want %#x", i, g.PCIDevice, g.PCISubsystem, ids)
				}
				if _, err := os.Stat(filepath.Join(n.root, "sys/bus/pci/devices", g.PCI)); err != nil {
					t.Errorf("GPU %d: the kernel does not know its address: %v", i, err)
				}
			}
			if d := cmp.Diff(tt.models, models); d != "" {
				t.Errorf("models (-want +got):\n%s", d)
			}
		})
	}
}

// TestSimBroken opens drivers that cannot be opened.
func TestSimBroken(t *testing.T) {
	tests := []struct {
		name, state string
		want        error
		code        int
	}{
		{"no driver", "absent", gpu.ErrNotLoaded, 9},
		{"mismatch", "mismatch", gpu.ErrVersionMismatch, 18},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := serve(t, "driver: \"580\"\nstate: "+tt.state+"\ngpus:\n  - {model: A100-SXM4-40GB}\n", worker.Deadlines{})
			_, err := n.Node(testContext(t))
			var e *gpu.Error
			if !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Code != tt.code {
				t.Errorf("Node: %v; want %v with code %d", err, tt.want, tt.code)
			}
		})
	}
}

// TestSimProfiles compares the profiles with the published listing of the A100 40 GB (MIG User Guide).
func TestSimProfiles(t *testing.T) {
	for _, node := range []string{mixed, old} {
		n := serve(t, node, worker.Deadlines{})
		ctx := testContext(t)
		n.readGPUs(ctx)
		p, err := n.Profiles(ctx, n.gpus[0])
		if err != nil {
			t.Fatal(err)
		}
		type row struct {
			ID             uint32
			Name           string
			Slices, Max    uint32
			Starts         []uint32
			Size           uint32
			Attributes     string
			MemoryMoreThan uint64
		}
		var got []row
		for _, g := range p.GI {
			r := row{
				ID:             g.ID,
				Name:           g.Name,
				Slices:         g.Slices,
				Max:            g.Max,
				Attributes:     strings.Join(g.Attributes, ","),
				MemoryMoreThan: g.Memory >> 30,
			}
			for _, at := range g.Placements {
				r.Starts, r.Size = append(r.Starts, at.Start), at.Size
			}
			got = append(got, r)
		}
		want := []row{
			{0, "7g.40gb", 7, 1, []uint32{0}, 8, "", 39},
			{5, "4g.20gb", 4, 1, []uint32{0}, 4, "", 19},
			{9, "3g.20gb", 3, 2, []uint32{0, 4}, 4, "", 19},
			{14, "2g.10gb", 2, 3, []uint32{0, 2, 4}, 2, "", 9},
			{15, "1g.10gb", 1, 4, []uint32{0, 2, 4, 6}, 2, "", 9},
			{19, "1g.5gb", 1, 7, []uint32{0, 1, 2, 3, 4, 5, 6}, 1, "", 4},
			{20, "1g.5gb+me", 1, 1, []uint32{0, 1, 2, 3, 4, 5, 6}, 1, "me", 4},
		}
		if d := cmp.Diff(want, got); d != "" || p.Width != 8 {
			t.Errorf("width %d; want 8 (-want +got):\n%s", p.Width, d)
		}
	}
}

// TestSimNVLinks reads links to other GPUs, to switches and links that are down, with both versions of the library.
func TestSimNVLinks(t *testing.T) {
	const gpus = "gpus:\n  - {model: A100-SXM4-40GB, count: 3}\n  - {model: RTX-PRO-6000-96GB}\n"
	for _, tt := range []struct {
		name, node string
		want       []gpu.NVLinks
	}{
		{"bridge", "driver: \"535\"\nnvlink: {bridges: [[0, 1]]}\n" + gpus, []gpu.NVLinks{{Peers: []string{"0000:0f:00.0"}}, {Peers: []string{"0000:07:00.0"}}, {Down: 12}, {}}},
		{"switches", "driver: \"580\"\nnvlink: {switches: 6}\n" + gpus, []gpu.NVLinks{{Switches: 12}, {Switches: 12}, {Switches: 12}, {}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := serve(t, tt.node, worker.Deadlines{})
			n.readGPUs(testContext(t))
			var got []gpu.NVLinks
			for _, id := range n.gpus {
				l, err := n.NVLinks(testContext(t), id)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, l)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			n.ctl("fault", "add", "DeviceGetNvLinkRemote*", "fail", "--code", "15", "--gpu", "1")
			if _, err := n.NVLinks(testContext(t), n.gpus[1]); !errors.Is(err, gpu.ErrLost) {
				t.Errorf("lost GPU: %v", err)
			}
		})
	}
}

func TestSimInstances(t *testing.T) {
	for _, node := range []string{hopper, old} {
		n := serve(t, node, worker.Deadlines{})
		ctx := testContext(t)
		n.readGPUs(ctx)
		id := n.gpus[0]
		if node == hopper {
			m, err := n.SetMIGMode(ctx, id, true)
			if err != nil || !m.Current || !m.Pending || m.Activation != nil {
				t.Fatalf("SetMIGMode = %+v, %v; want it active at once", m, err)
			}
		}
		create := func(profile, start, size uint32, compute ...gpu.NewCompute) (gpu.Instance, error) {
			return n.CreateInstance(
				ctx, id, gpu.NewInstance{ProfileID: profile, Placement: gpu.Placement{Start: start, Size: size}, Compute: compute},
			)
		}
		whole, err := create(9, 4, 4)
		if err != nil {
			t.Fatal(err)
		}
		if whole.ProfileID != 9 || whole.Placement != (gpu.Placement{Start: 4, Size: 4}) || len(whole.Compute) != 1 ||
			whole.Compute[0].Placement.Size != 3 || !strings.HasPrefix(string(whole.Compute[0].UUID), "MIG-") || whole.Memory.Total == 0 {
			t.Errorf("3g = %+v", whole)
		}
		if _, err := create(14, 4, 2); !errors.Is(err, gpu.ErrInsufficientResources) {
			t.Errorf("overlapping instance: %v; want ErrInsufficientResources", err)
		}
		if _, err := create(77, 0, 1); !errors.Is(err, gpu.ErrInvalid) {
			t.Errorf("no such profile: %v; want ErrInvalid", err)
		}
		split, err := create(9, 0, 4, gpu.NewCompute{Slices: 2}, gpu.NewCompute{Slices: 1})
		if err != nil || len(split.Compute) != 2 {
			t.Fatalf("3g in two = %+v, %v", split, err)
		}
		s, err := n.Snapshot(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]gpu.Instance{split, whole}, s.Instances, cmpopts.IgnoreFields(gpu.Instance{}, "Memory")); d != "" ||
			!s.MIG.Current {
			t.Errorf("snapshot (-created +read):\n%s", d)
		}
		p, err := n.Profiles(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range p.GI {
			if (len(g.Compute) > 0) != (g.ID == 9) {
				t.Errorf("profile %d has compute profiles %v; only that of an existing instance is known", g.ID, g.Compute)
			}
		}
		if err := n.DestroyInstance(ctx, id, split.ID); err != nil {
			t.Error(err)
		}
		if err := n.DestroyInstance(ctx, id, split.ID); !errors.Is(err, gpu.ErrNotFound) {
			t.Errorf("destroyed twice: %v; want ErrNotFound", err)
		}
		if _, err := create(9, 0, 4, gpu.NewCompute{Slices: 2}, gpu.NewCompute{Slices: 2}); err == nil {
			t.Error("four compute slices were created in three")
		}
		if s, err = n.Snapshot(ctx, id); err != nil || len(s.Instances) != 1 {
			t.Errorf("after a failed creation: %+v, %v; want the previous instances", s.Instances, err)
		}
		again, err := create(9, 0, 4)
		if err != nil || again.ID != split.ID {
			t.Errorf("same placement again: %+v, %v; want the same id", again, err)
		}
	}
}

// TestSimUndo lets the creation of the compute instance fail, and then its undo too.
func TestSimUndo(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	want := gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: 3, Size: 1}}
	n.ctl("fault", "add", "GpuInstanceCreateComputeInstance", "fail", "--code", "23")
	if _, err := n.CreateInstance(ctx, n.gpus[0], want); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("CreateInstance: %v; want ErrInsufficientResources", err)
	}
	if s, err := n.Snapshot(ctx, n.gpus[0]); err != nil || len(s.Instances) != 0 {
		t.Errorf("not undone: %+v, %v", s.Instances, err)
	}
	n.ctl("fault", "add", "GpuInstanceCreateComputeInstance", "fail", "--code", "23")
	n.ctl("fault", "add", "GpuInstanceDestroy", "fail", "--code", "19")
	_, err := n.CreateInstance(ctx, n.gpus[0], want)
	if !errors.Is(err, gpu.ErrInsufficientResources) || !strings.Contains(err.Error(), "cannot undo the creation") {
		t.Errorf("CreateInstance: %v; want that the undo fails", err)
	}
	s, err := n.Snapshot(ctx, n.gpus[0])
	if err != nil || len(s.Instances) != 1 || len(s.Instances[0].Compute) != 0 {
		t.Fatalf("orphan: %+v, %v; want it in the snapshot", s.Instances, err)
	}
	in, err := n.CompleteInstance(ctx, n.gpus[0], s.Instances[0].ID, nil)
	if err != nil || len(in.Compute) != 1 {
		t.Errorf("CompleteInstance = %+v, %v", in, err)
	}
	if in, err = n.CompleteInstance(ctx, n.gpus[0], in.ID, nil); err != nil || len(in.Compute) != 1 {
		t.Errorf("completed twice = %+v, %v; want one compute instance", in, err)
	}
}

// TestSimRefusedDestroy lets the destruction of the second of two compute instances fail: the first one is created again.
func TestSimRefusedDestroy(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	in, err := n.CreateInstance(ctx, n.gpus[0], gpu.NewInstance{
		ProfileID: 9, Placement: gpu.Placement{Start: 4, Size: 4}, Compute: []gpu.NewCompute{{Slices: 1}, {Slices: 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.ctl("fault", "add", "ComputeInstanceDestroy", "fail", "--nth", "2", "--code", "19")
	if err := n.DestroyInstance(ctx, n.gpus[0], in.ID); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("DestroyInstance: %v; want ErrInUse", err)
	}
	s, err := n.Snapshot(ctx, n.gpus[0])
	if err != nil || len(s.Instances) != 1 {
		t.Fatalf("instances = %+v, %v", s.Instances, err)
	}
	byStart := cmpopts.SortSlices(func(a, b gpu.ComputeInstance) bool { return a.Placement.Start < b.Placement.Start })
	if d := cmp.Diff(in, s.Instances[0], byStart, cmpopts.IgnoreFields(gpu.ComputeInstance{}, "ID")); d != "" {
		t.Errorf("after a failed destruction (-before +after):\n%s", d)
	}
}

// TestSimMode changes the MIG mode of an Ampere board, which needs a GPU reset.
func TestSimMode(t *testing.T) {
	n := serve(t, mixed, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	for i, resetless := range []bool{false, true} {
		s, err := n.Snapshot(ctx, n.gpus[i])
		if err != nil || !s.MIG.Capable || s.MIG.Resetless == nil || *s.MIG.Resetless != resetless {
			t.Errorf("MIG of GPU %d = %+v, %v; want resetless %v", i, s.MIG, err, resetless)
		}
	}
	id := n.gpus[0]
	ctx0 := n.cudaContext(string(id))
	m, err := n.SetMIGMode(ctx, id, true)
	if err != nil || m.Current || !m.Pending || m.Activation == nil ||
		!errors.Is(m.Activation, gpu.ErrInUse) && !errors.Is(m.Activation, gpu.ErrResetRequired) {
		t.Errorf("busy: %+v, %v; want pending and the reason", m, err)
	}
	ctx0.conn.Close()
	if m, err = n.SetMIGMode(ctx, id, true); err != nil || m.Current != m.Pending && m.Activation == nil {
		t.Errorf("idle: %+v, %v; want active, or the reason", m, err)
	}
	for _, mode := range []gpu.ComputeMode{gpu.ComputeExclusiveProcess, gpu.ComputeProhibited, gpu.ComputeDefault} {
		if err := n.SetComputeMode(ctx, n.gpus[1], mode); err != nil {
			t.Error(err)
		}
		if s, err := n.Snapshot(ctx, n.gpus[1]); err != nil || s.ComputeMode != mode {
			t.Errorf("compute mode %q, %v; want %q", s.ComputeMode, err, mode)
		}
	}
	if err := n.SetComputeMode(ctx, n.gpus[1], "no-such"); !errors.Is(err, gpu.ErrInvalid) {
		t.Errorf("no such mode: %v; want ErrInvalid", err)
	}
	if _, err := n.Memory(ctx, "GPU-00000000-0000-0000-0000-000000000000"); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("no such GPU: %v; want ErrNotFound", err)
	}
}

// TestSimInstanceProcesses reads the processes of one instance with the lists of that instance alone.
func TestSimInstanceProcesses(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	id := n.gpus[0]
	var all []gpu.Instance
	for start := range uint32(3) {
		in, err := n.CreateInstance(ctx, id, gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: start, Size: 1}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, in)
	}
	n.cudaContext(string(all[1].Compute[0].UUID)).send("ALLOC 1048576")
	lists := func() (sum int) {
		for name, k := range n.calls() {
			if strings.HasSuffix(name, "RunningProcesses") {
				sum += k
			}
		}
		return sum
	}
	of := func(read func() ([]gpu.Process, error)) (procs []gpu.Process, count int) {
		t.Helper()
		before := lists()
		procs, err := read()
		if err != nil {
			t.Fatal(err)
		}
		return procs, lists() - before
	}
	whole, most := of(func() ([]gpu.Process, error) { return n.Processes(ctx, id) })
	one, few := of(func() ([]gpu.Process, error) { return n.InstanceProcesses(ctx, id, all[1].ID) })
	none, again := of(func() ([]gpu.Process, error) { return n.InstanceProcesses(ctx, id, 99) })
	if len(one) != 1 || one[0].GI == nil || *one[0].GI != all[1].ID || one[0].PID != os.Getpid() {
		t.Errorf("of the instance: %+v", one)
	}
	if len(whole) != 1 || len(none) != 1 || again != most {
		t.Errorf("of the GPU: %+v with %d lists; without such an instance: %+v with %d", whole, most, none, again)
	}
	// No instance has graphics, and one without compute processes has no clients of MPS.
	if ofGPU, ofVacant, ofUsed := 3, 1, 2; most != ofGPU+(len(all)-1)*ofVacant+ofUsed || few != ofUsed {
		t.Errorf("%d lists are read of one of %d instances, %d of all", few, len(all), most)
	}
	other, least := of(func() ([]gpu.Process, error) { return n.InstanceProcesses(ctx, id, all[0].ID) })
	if len(other) != 0 || least != 1 {
		t.Errorf("of a vacant instance: %+v with %d lists", other, least)
	}
}

// TestSimAListGoesBetween lists the processes of one instance while those of all are listed: it does not wait for all lists.
func TestSimAListGoesBetween(t *testing.T) {
	n := serve(t, old, worker.Deadlines{Read: time.Minute, Snapshot: time.Minute})
	ctx := testContext(t)
	n.readGPUs(ctx)
	id := n.gpus[0]
	var in gpu.Instance
	for start := range uint32(7) {
		var err error
		if in, err = n.CreateInstance(
			ctx,
			id,
			gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: start, Size: 1}},
		); err != nil {
			t.Fatal(err)
		}
	}
	n.ctl("latency", "DeviceGet*RunningProcesses", "50ms")
	var begun, ended atomic.Int64
	var all sync.WaitGroup
	stop := make(chan struct{})
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			begun.Add(1)
			var err error
			if i%2 == 0 {
				_, err = n.Processes(ctx, id)
			} else {
				_, err = n.Snapshot(ctx, id)
			}
			ended.Add(1)
			if err != nil {
				t.Errorf("the processes of all: %v", err)
				return
			}
		}
	})
	defer all.Wait()
	defer close(stop)
	// On a busy host this goroutine may begin too late for one reading: then it goes between the lists of another one.
	for ctx.Err() == nil && !t.Failed() {
		before := ended.Load()
		if begun.Load() == before {
			continue
		}
		if _, err := n.InstanceProcesses(ctx, id, in.ID); err != nil {
			t.Fatalf("the processes of one: %v", err)
		}
		if ended.Load() == before {
			return
		}
	}
	t.Error("no list of one instance ended before the lists of all that had begun before it")
}

// TestSimProcesses uses a whole GPU and an instance with this process.
func TestSimProcesses(t *testing.T) {
	for _, node := range []string{mixed, plain, old} {
		n := serve(t, node, worker.Deadlines{})
		ctx := testContext(t)
		n.readGPUs(ctx)
		id, device, mig := n.gpus[0], string(n.gpus[0]), node == old
		var in gpu.Instance
		if mig {
			var err error
			if in, err = n.CreateInstance(
				ctx, id, gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: 2, Size: 1}},
			); err != nil {
				t.Fatal(err)
			}
			device = string(in.Compute[0].UUID)
		}
		before, err := n.Memory(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		c := n.cudaContext(device)
		c.send("ALLOC 1073741824")
		procs, err := n.Processes(ctx, id)
		if err != nil || len(procs) != 1 {
			t.Fatalf("processes = %+v, %v; want one", procs, err)
		}
		p := procs[0]
		if p.PID != os.Getpid() || p.Kind != gpu.ComputeProcess || p.Memory == nil || *p.Memory < 1<<30 {
			t.Errorf("process = %+v; want this one with 1 GiB", p)
		}
		if mig && (p.GI == nil || *p.GI != in.ID || p.CI == nil || *p.CI != 0) || !mig && (p.GI != nil || p.CI != nil) {
			t.Errorf("process is in instance %v/%v", p.GI, p.CI)
		}
		after, err := n.Memory(ctx, id)
		if err != nil || after.Used < before.Used+1<<30 || after.Total != after.Reserved+after.Used+after.Free {
			t.Errorf("memory %+v after %+v, %v", after, before, err)
		}
		if mig {
			if err := n.DestroyInstance(ctx, id, in.ID); !errors.Is(err, gpu.ErrInUse) ||
				!strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
				t.Errorf("destroyed while in use: %v; want ErrInUse and the pid", err)
			}
			if _, _, err := n.Utilization(ctx, id, 0); !errors.Is(err, gpu.ErrNotSupported) {
				t.Errorf("utilisation with MIG: %v; want ErrNotSupported", err)
			}
			if _, err := n.UtilizationSeries(ctx, id, 0); !errors.Is(err, gpu.ErrNotSupported) {
				t.Errorf("utilisation series with MIG: %v; want ErrNotSupported", err)
			}
			continue
		}
		if s, newest, err := n.Utilization(ctx, id, 5); err != nil || len(s) != 0 || newest != 5 {
			t.Errorf("idle: samples %v, newest %d, %v; want none and no error", s, newest, err)
		}
		if s, err := n.UtilizationSeries(ctx, id, 5); err != nil || len(s.Samples) != 0 || s.Newest != 5 {
			t.Errorf("idle: series %+v, %v; want none and no error", s, err)
		}
		start := time.Now()
		c.send("QUEUE 100")
		c.send("LAUNCH 20000 50") // 1 s of work
		c.send("SYNC")
		end := time.Now()
		series, err := n.UtilizationSeries(ctx, id, 0)
		if err != nil || len(series.Samples) < 6 || len(series.Samples) > 9 {
			t.Fatalf("busy: series %+v, %v; want 7 or 8 samples", series, err)
		}
		for i, x := range series.Samples {
			at := time.UnixMicro(int64(x.Time))
			if at.Before(start.Add(-time.Millisecond)) || at.After(end.Add(time.Second)) || x.Percent < 0 || x.Percent > 100 {
				t.Errorf("sample %+v of work from %v to %v", x, start, end)
			}
			if middle := i > 0 && i < len(series.Samples)-1; middle && x.Percent != 100 {
				t.Errorf("sample %d of a busy second is %d %%", i, x.Percent)
			}
		}
		second := series.Samples[1].Time
		if s, err := n.UtilizationSeries(ctx, id, second); err != nil || len(s.Samples) < len(series.Samples)-2 ||
			s.Samples[0] != series.Samples[2] {
			t.Errorf("newer than the second sample: %+v, %v; want those after it of %+v", s, err, series)
		}
		s, newest, err := n.Utilization(ctx, id, 0)
		if err != nil || len(s) == 0 || newest == 0 {
			t.Fatalf("busy: samples %v, newest %d, %v; want some", s, newest, err)
		}
		for _, x := range s {
			if x.PID != os.Getpid() || x.SM < 1 || x.SM > 100 || x.Time > newest {
				t.Errorf("sample %+v", x)
			}
		}
		if s, again, err := n.Utilization(ctx, id, newest); err != nil || len(s) != 0 && again == newest {
			t.Errorf("nothing newer: %v, %d, %v", s, again, err)
		}
	}
}

// TestSimHang lets one GPU hang in the driver: the other one works, and the first one works again after a retry.
func TestSimHang(t *testing.T) {
	n := serve(t, hopper, worker.Deadlines{Snapshot: time.Second})
	ctx := testContext(t)
	n.readGPUs(ctx)
	n.ctl("fault", "add", "DeviceGetUtilizationRates", "hang", "--gpu", string(n.gpus[0]))
	if _, err := n.Snapshot(ctx, n.gpus[0]); !errors.Is(err, gpu.ErrTimeout) {
		t.Fatalf("hung: %v; want ErrTimeout", err)
	}
	if _, err := n.Snapshot(ctx, n.gpus[1]); err != nil {
		t.Errorf("other GPU: %v", err)
	}
	info, err := n.Node(ctx)
	if err != nil || len(info.GPUs) != 2 || info.GPUs[0].Error == "" || info.GPUs[1].Error != "" || info.GPUs[1].Index != 1 {
		t.Errorf("node = %+v, %v; want both with an error on the first", info.GPUs, err)
	}
	n.ctl("fault", "clear")
	if err := n.Retry(ctx, n.gpus[0]); err != nil {
		t.Errorf("Retry: %v", err)
	}
	if st := n.Status(); len(st.Unresponsive) > 0 || st.Stuck {
		t.Errorf("status = %+v", st)
	}
}

// TestSimExcludedIsNotTouched checks that a worker makes no call on an excluded GPU: all calls on this GPU hang.
func TestSimExcludedIsNotTouched(t *testing.T) {
	n := serve(t, hopper, worker.Deadlines{Snapshot: time.Second, Node: 2 * time.Second, Start: 5 * time.Second})
	ctx := testContext(t)
	n.readGPUs(ctx)
	n.ctl("fault", "add", "any", "hang", "--gpu", string(n.gpus[0]), "--times", "-1")
	if _, err := n.Snapshot(ctx, n.gpus[0]); !errors.Is(err, gpu.ErrTimeout) {
		t.Fatalf("hung: %v; want ErrTimeout", err)
	}
	for range 3 {
		if _, err := n.Snapshot(ctx, n.gpus[1]); err != nil {
			t.Errorf("other GPU: %v", err)
		}
		if _, err := n.Node(ctx); err != nil {
			t.Errorf("node: %v", err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := n.Events(short, func(gpu.Event) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("events: %v; want them to be read until the end", err)
	}
	if st := n.Stats(); st.Starts != 2 {
		t.Errorf("%d workers; want 2", st.Starts)
	}
	n.ctl("fault", "clear")
}

// TestSimHangAtStart lets one GPU hang before the first worker starts: only this GPU becomes unresponsive.
func TestSimHangAtStart(t *testing.T) {
	enumeration.Long(t)
	n := serve(t, hopper, worker.Deadlines{Start: 10 * time.Second}) // The second start is one of a worker next to other work.
	ctx := testContext(t)
	var st struct {
		GPUs []struct {
			Identity gpu.Identity `json:"identity"`
		} `json:"gpus"`
	}
	if err := json.Unmarshal(n.ctl("status"), &st); err != nil || len(st.GPUs) != 2 || st.GPUs[1].Identity.UUID == "" {
		t.Fatalf("status: %+v, %v", st, err)
	}
	n.ctl("fault", "add", "any", "hang", "--gpu", string(st.GPUs[1].Identity.UUID), "--times", "-1")
	if _, err := n.Node(ctx); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("first start: %v; want ErrTimeout", err)
	}
	info, err := n.Node(ctx)
	if err != nil || len(info.GPUs) != 2 {
		t.Fatalf("second start: %+v, %v", info, err)
	}
	if got := n.Status(); got.Stuck || !slices.Equal(got.Unresponsive, []gpu.UUID{st.GPUs[1].Identity.UUID}) {
		t.Errorf("status = %+v; want one unresponsive GPU", got)
	}
	if _, err := n.Snapshot(ctx, st.GPUs[0].Identity.UUID); err != nil {
		t.Errorf("other GPU: %v", err)
	}
	n.ctl("fault", "clear")
}

// TestSimLost loses one GPU.
func TestSimLost(t *testing.T) {
	n := serve(t, hopper, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	n.ctl("fault", "add", "DeviceGetMemoryInfo*", "lose", "--gpu", string(n.gpus[0]))
	if _, err := n.Memory(ctx, n.gpus[0]); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("lost: %v; want ErrLost", err)
	}
	info, err := n.Node(ctx)
	if err != nil || len(info.GPUs) != 2 || info.GPUs[0].UUID != n.gpus[0] || info.GPUs[0].Error == "" || info.GPUs[0].Model == "" {
		t.Errorf("node = %+v, %v; want the lost GPU in the list", info.GPUs, err)
	}
	if _, err := n.Snapshot(ctx, n.gpus[1]); err != nil {
		t.Errorf("other GPU: %v", err)
	}
	if st := n.Status(); len(st.Unresponsive) > 0 {
		t.Errorf("status = %+v; a lost GPU answers and is not unresponsive", st)
	}
}

// TestSimEvents reads the events of an XID and of a change of the MIG layout.
func TestSimEvents(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	watch, stop := context.WithCancel(ctx)
	got := make(chan gpu.Event, 16)
	ended := make(chan error, 1)
	go func() {
		ended <- n.Events(watch, func(e gpu.Event) { got <- e })
	}()
	// The call counter shows when the events are registered.
	for n.calls()["EventSetWait"] == 0 {
		if ctx.Err() != nil {
			t.Fatal("no client waits for events")
		}
	}
	next := func(kind gpu.EventKind) gpu.Event {
		t.Helper()
		for {
			select {
			case e := <-got:
				if e.Kind == kind {
					return e
				}
			case <-ctx.Done():
				t.Fatalf("no event %q", kind)
			}
		}
	}
	// After a failed wait the events are registered again.
	waits := n.calls()["EventSetWait"]
	n.ctl("fault", "add", "EventSetWait", "fail", "--code", "999")
	for n.calls()["EventSetWait"] < waits+3 {
		if ctx.Err() != nil {
			t.Fatal("no client waits for events after a failed wait")
		}
	}
	n.ctl("xid", string(n.gpus[0]), "31")
	if e := next(gpu.EventXID); e.XID != 31 || e.GPU != n.gpus[0] || e.Time.IsZero() {
		t.Errorf("event = %+v; want XID 31", e)
	}
	if _, err := n.CreateInstance(ctx, n.gpus[0], gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: 2, Size: 1}}); err != nil {
		t.Fatal(err)
	}
	if e := next(gpu.EventMIGConfig); e.GPU != n.gpus[0] {
		t.Errorf("event = %+v; want one of the first GPU", e)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Events: %v; want context.Canceled", err)
	}
}

// calls returns how often each call was made.
func (n *simNode) calls() map[string]int {
	n.t.Helper()
	var st struct {
		Counters struct {
			Calls map[string]int `json:"calls"`
		} `json:"counters"`
	}
	if err := json.Unmarshal(n.ctl("status"), &st); err != nil {
		n.t.Fatal(err)
	}
	return st.Counters.Calls
}

// TestSimCost counts the calls of readings that run every second: each process list takes milliseconds under a lock of
// the driver.
func TestSimCost(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	for i := range uint32(7) {
		if _, err := n.CreateInstance(
			ctx, n.gpus[0], gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: i, Size: 1}},
		); err != nil {
			t.Fatal(err)
		}
	}
	cost := func(read func() error) (all, lists int) {
		t.Helper()
		before := n.calls()
		if err := read(); err != nil {
			t.Fatal(err)
		}
		for name, k := range n.calls() {
			all += k - before[name]
			if strings.HasSuffix(name, "RunningProcesses") {
				lists += k - before[name]
			}
		}
		return all, lists
	}
	all, lists := cost(func() error { _, err := n.Snapshot(ctx, n.gpus[0]); return err })
	if all > 63 || lists != 9 { // two of the GPU and one of each instance: without compute processes there are no clients of MPS
		t.Errorf("a snapshot of seven instances makes %d calls, %d of them process lists; want at most 63 and 9", all, lists)
	}
	if all, lists := cost(func() error { _, err := n.Memory(ctx, n.gpus[0]); return err }); all != 1 || lists != 0 {
		t.Errorf("reading the memory makes %d calls; want 1", all)
	}
}

// BenchmarkSim measures readings on a virtual node without latencies: the time to the worker and to the virtual node,
// without hardware.
func BenchmarkSim(b *testing.B) {
	n := serve(b, old, worker.Deadlines{})
	n.readGPUs(b.Context())
	for i := range uint32(7) {
		if _, err := n.CreateInstance(
			b.Context(), n.gpus[0], gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: i, Size: 1}},
		); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("memory", func(b *testing.B) {
		for b.Loop() {
			if _, err := n.Memory(b.Context(), n.gpus[0]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("snapshot of seven instances", func(b *testing.B) {
		for b.Loop() {
			if _, err := n.Snapshot(b.Context(), n.gpus[0]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestSimKill kills the worker between readings of a virtual node.
func TestSimKill(t *testing.T) {
	n := serve(t, hopper, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	for range 3 {
		p, err := os.FindProcess(n.Status().PID)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, id := range n.gpus {
			if _, err := n.Snapshot(ctx, id); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestSimAllAtOnce runs all operations on every GPU concurrently while workers are killed. Changes may fail because of a
// missing answer, readings may not. At the end no instance remains.
func TestSimAllAtOnce(t *testing.T) {
	n := serve(
		t, "driver: \"580\"\ngpus:\n  - {model: A100-SXM4-40GB, count: 3, mig: true}\n  - {model: H100-SXM5-80GB}\n",
		worker.Deadlines{},
	)
	ctx := testContext(t)
	n.readGPUs(ctx)
	const rounds = 15
	var all sync.WaitGroup
	for i, id := range n.gpus {
		all.Go(func() {
			for range rounds {
				if _, err := n.Snapshot(ctx, id); err != nil && !metTwoCrashes(err) {
					t.Errorf("snapshot: %v", err)
				}
				if _, err := n.Profiles(ctx, id); err != nil && !metTwoCrashes(err) && !errors.Is(err, gpu.ErrNotSupported) {
					t.Errorf("profiles: %v", err)
				}
			}
		})
		if i == 3 {
			continue // not in MIG mode
		}
		all.Go(func() {
			for k := range uint32(rounds) {
				in, err := n.CreateInstance(ctx, id, gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: k % 7, Size: 1}})
				if err == nil {
					err = n.DestroyInstance(ctx, id, in.ID)
				}
				// An instance whose answer was lost may occupy the placement of a later one.
				if err != nil && !errors.Is(err, gpu.ErrTimeout) && !errors.Is(err, gpu.ErrInsufficientResources) {
					t.Errorf("change: %v", err)
				}
			}
		})
	}
	all.Go(func() {
		for range rounds {
			if _, err := n.Node(ctx); err != nil && !metTwoCrashes(err) {
				t.Errorf("node: %v", err)
			}
		}
	})
	all.Go(func() {
		for range 3 {
			if p, err := os.FindProcess(n.Status().PID); err == nil && p.Pid > 0 {
				_ = p.Kill() // it may have been replaced
			}
			for range 20 { // some work in between
				if _, err := n.Memory(ctx, n.gpus[0]); err != nil && !metTwoCrashes(err) {
					t.Errorf("memory: %v", err)
				}
			}
		}
	})
	all.Wait()
	for _, id := range n.gpus[:3] {
		s, err := n.Snapshot(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range s.Instances {
			if err := n.DestroyInstance(ctx, id, in.ID); err != nil {
				t.Errorf("remaining instance: %v", err)
			}
		}
	}
	if st := n.Status(); len(st.Unresponsive) > 0 || st.Stuck {
		t.Errorf("status = %+v; a killed worker makes no GPU unresponsive", st)
	}
}

// metTwoCrashes reports whether two workers were killed during a reading, which may happen here.
func metTwoCrashes(err error) bool { return strings.Contains(err.Error(), "twice") }

// TestSimRebooted checks that the client works again after the reboot of the node.
func TestSimRebooted(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	ctx := testContext(t)
	n.readGPUs(ctx)
	if _, err := n.CreateInstance(ctx, n.gpus[0], gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Start: 2, Size: 1}}); err != nil {
		t.Fatal(err)
	}
	n.ctl("reboot")
	var s gpu.Snapshot
	var err error
	for range 3 { // an old handle fails once
		if s, err = n.Snapshot(ctx, n.gpus[0]); err == nil {
			break
		}
	}
	if err != nil || !s.MIG.Current || len(s.Instances) != 0 {
		t.Errorf("after a reboot: %+v, %v; want MIG mode kept and no instance", s, err)
	}
}

// TestSimMemoryLimits sets, reads and removes the limit of a cgroup of this host through the worker, and reads the symbols that an
// older library lacks.
func TestSimMemoryLimits(t *testing.T) {
	const gpus = "gpus: [{model: H100-SXM5-80GB}]\n"
	old := serve(t, "driver: \"580\"\n"+gpus, worker.Deadlines{})
	old.readGPUs(testContext(t))
	info, err := old.Node(testContext(t))
	if err != nil || !slices.Contains(info.Missing, "nvmlDeviceSetMemoryLimits_v1") ||
		!slices.Contains(info.Missing, "nvmlDeviceGetMemoryLimits_v1") {
		t.Errorf("missing = %q, %v; want the functions of R615", info.Missing, err)
	}
	if _, err := old.MemoryLimit(testContext(t), old.gpus[0], "/"); !errors.Is(err, gpu.ErrMissing) {
		t.Errorf("580: %v", err)
	}
	if err := old.SetMemoryLimit(testContext(t), old.gpus[0], "/", nil); !errors.Is(err, gpu.ErrMissing) {
		t.Errorf("580: %v", err)
	}

	root := (&gpusim.HostCgroups{}).Root()
	if root == "" {
		t.Skip("no cgroup v2 hierarchy is mounted")
	}
	n := serve(t, "driver: \"615\"\nmemory_limits: {accounting: misc}\n"+gpus, worker.Deadlines{})
	n.readGPUs(testContext(t))
	ctx, id := testContext(t), n.gpus[0]
	if info, err := n.Node(ctx); err != nil || slices.Contains(info.Missing, "nvmlDeviceSetMemoryLimits_v1") {
		t.Errorf("missing = %q, %v", info.Missing, err)
	}
	for _, hard := range []*uint64{nil, new(uint64(7 << 30)), nil} {
		if err := n.SetMemoryLimit(ctx, id, root, hard); err != nil {
			t.Fatal(err)
		}
		is, err := n.MemoryLimit(ctx, id, root)
		if diff := cmp.Diff(gpu.MemoryLimit{Hard: hard}, is); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	err = n.SetMemoryLimit(ctx, id, filepath.Join(root, "no-such"), nil)
	if !errors.Is(err, gpu.ErrInvalid) || !strings.Contains(err.Error(), "cannot open the cgroup") {
		t.Errorf("a cgroup that does not exist: %v", err)
	}
	n.ctl("fault", "add", "DeviceSetMemoryLimits", "fail", "--code", "4")
	if err := n.SetMemoryLimit(ctx, id, root, new(uint64(1<<30))); !errors.Is(err, gpu.ErrDenied) {
		t.Errorf("a refused call: %v", err)
	}
}
