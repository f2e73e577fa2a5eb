//go:build cgo

package nvml

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

func TestReturnCodes(t *testing.T) {
	want := map[nvml.Return]error{
		0: nil,
		2: gpu.ErrInvalid, 3: gpu.ErrNotSupported, 4: gpu.ErrDenied, 6: gpu.ErrNotFound, 9: gpu.ErrNotLoaded,
		10: gpu.ErrTimeout, 12: gpu.ErrNoLibrary, 13: gpu.ErrMissing, 15: gpu.ErrLost, 16: gpu.ErrResetRequired,
		18: gpu.ErrVersionMismatch, 19: gpu.ErrInUse, 23: gpu.ErrInsufficientResources, 25: gpu.ErrMissing,
		26: gpu.ErrMissing, 28: gpu.ErrLost,
	}
	for code := range nvml.Return(1000) {
		err, listed := want[code]
		if !listed {
			err = gpu.ErrUnknown
		}
		if got := sentinel(code); got != err { //nolint:errorlint // the bare sentinel is meant
			t.Errorf("code %d gives %v; want %v", code, got, err)
		}
	}
	err := fail("create instance", "GPU-1", nvml.ERROR_IN_USE)
	if want := "cannot create instance on GPU-1: in use (NVML code 19)"; err.Error() != want {
		t.Errorf("text = %q; want %q", err, want)
	}
	if err := fail("x", "", nvml.SUCCESS); err != nil {
		t.Errorf("success gives %v", err)
	}
}

func TestNoLibrary(t *testing.T) {
	d, err := Open(WithLibraryPath(filepath.Join(t.TempDir(), "libnvidia-ml.so.1")))
	if !errors.Is(err, gpu.ErrNoLibrary) {
		t.Fatalf("Open = %v, %v; want ErrNoLibrary", d, err)
	}
}

// TestOtherLibrary loads another library. A call of it would end the process.
func TestOtherLibrary(t *testing.T) {
	_, err := Open(WithLibraryPath("libm.so.6"))
	if errors.Is(err, gpu.ErrNoLibrary) {
		t.Skip("this host has no libm.so.6")
	}
	if !errors.Is(err, gpu.ErrMissing) {
		t.Fatalf("Open: %v; want ErrMissing", err)
	}
}

// TestSymbols removes symbols from a library.
func TestSymbols(t *testing.T) {
	var here byte
	without := func(names ...string) func(string) unsafe.Pointer {
		return func(s string) unsafe.Pointer {
			for _, n := range names {
				if s == n {
					return nil
				}
			}
			return unsafe.Pointer(&here)
		}
	}
	tests := []struct {
		name    string
		removed []string
		missing []string
		lacks   []feature
		best    map[string]string // the symbol to call by the preferred one
		fatal   bool
	}{
		{name: "complete"},
		{
			name:    "older process list",
			removed: []string{"nvmlDeviceGetComputeRunningProcesses_v3"},
			missing: []string{"nvmlDeviceGetComputeRunningProcesses_v3"},
			best:    map[string]string{"nvmlDeviceGetComputeRunningProcesses_v3": "nvmlDeviceGetComputeRunningProcesses_v2"},
		},
		{
			name:    "oldest process list",
			removed: []string{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
			missing: []string{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
			best:    map[string]string{"nvmlDeviceGetComputeRunningProcesses_v3": "nvmlDeviceGetComputeRunningProcesses"},
		},
		{
			name:    "older symbols that are not used",
			removed: []string{"nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetCount"},
		},
		{
			name:    "no profile names",
			removed: []string{"nvmlDeviceGetGpuInstanceProfileInfoV"},
			missing: []string{"nvmlDeviceGetGpuInstanceProfileInfoV"},
			lacks:   []feature{profileNames},
		},
		{
			name:    "the first version of a compute instance's information",
			removed: []string{"nvmlComputeInstanceGetInfo_v2"},
			missing: []string{"nvmlComputeInstanceGetInfo_v2"},
			lacks:   []feature{readPlacement},
		},
		{
			name:    "no MIG at all",
			removed: []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances"},
			missing: []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances"},
			lacks:   []feature{migMode, migInstances},
		},
		{
			name:    "no events",
			removed: []string{"nvmlEventSetWait_v2", "nvmlEventSetWait"},
			missing: []string{"nvmlEventSetWait_v2", "nvmlEventSetWait"},
			lacks:   []feature{events},
		},
		{name: "no init", removed: []string{"nvmlInit", "nvmlInit_v2"}, fatal: true},
		{name: "no UUID", removed: []string{"nvmlDeviceGetUUID"}, fatal: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := findSymbols(without(tt.removed...))
			if (err != nil) != tt.fatal {
				t.Fatalf("error = %v; want one: %v", err, tt.fatal)
			}
			if tt.fatal {
				return
			}
			if d := cmp.Diff(tt.missing, s.missing); d != "" {
				t.Errorf("missing (-want +got):\n%s", d)
			}
			lacks := map[feature]bool{}
			for _, f := range tt.lacks {
				lacks[f] = true
			}
			for f := range events + 1 {
				if s.has(f) == lacks[f] {
					t.Errorf("has feature %d: %v; want %v", f, s.has(f), !lacks[f])
				}
			}
			if len(s.losses()) != len(tt.lacks) {
				t.Errorf("lost = %q; want %d sentences", s.losses(), len(tt.lacks))
			}
			for best, want := range tt.best {
				if got, at := s.call(best); got != want || at == nil {
					t.Errorf("%s is called as %q; want %q", best, got, want)
				}
			}
		})
	}
}

// TestNeedsStateTheirLoss checks that each optional feature names the effect of its absence.
func TestNeedsStateTheirLoss(t *testing.T) {
	covered := map[feature]bool{}
	for _, n := range needs() {
		covered[n.feature] = true
		if (n.loss == "") != (n.feature == required) || len(n.symbols) == 0 {
			t.Errorf("%v is incomplete", n)
		}
	}
	for f := range events + 1 {
		if !covered[f] {
			t.Errorf("feature %d needs nothing", f)
		}
	}
}

// TestComposeName compares with the names that the vendor's tools print for these boards (MIG listings in the User Guide
// and by users; memory in MiB as listed).
func TestComposeName(t *testing.T) {
	const mib = 1 << 20
	tests := []struct {
		board  string
		total  uint64 // MiB
		slices uint32
		memory uint64 // MiB
		attrs  []string
		want   string
	}{
		{"A100-40", 40960, 1, 4864, nil, "1g.5gb"},
		{"A100-40", 40960, 1, 4864, []string{"me"}, "1g.5gb+me"},
		{"A100-40", 40960, 1, 9856, nil, "1g.10gb"},
		{"A100-40", 40960, 2, 9856, nil, "2g.10gb"},
		{"A100-40", 40960, 3, 19968, nil, "3g.20gb"},
		{"A100-40", 40960, 4, 19968, nil, "4g.20gb"},
		{"A100-40", 40960, 7, 40192, nil, "7g.40gb"},
		{"A100-80", 81920, 1, 9728, nil, "1g.10gb"},
		{"A100-80", 81920, 3, 40192, nil, "3g.40gb"},
		{"H100-80", 81559, 1, 9984, nil, "1g.10gb"},
		{"H100-80", 81559, 1, 20096, nil, "1g.20gb"},
		{"H100-80", 81559, 7, 81152, nil, "7g.80gb"},
		{"H200", 143771, 1, 16384, nil, "1g.18gb"},
		{"H200", 143771, 1, 33024, nil, "1g.35gb"},
		{"H200", 143771, 3, 71168, nil, "3g.71gb"},
		{"A30", 24576, 1, 5952, nil, "1g.6gb"},
		{"A30", 24576, 2, 11968, []string{"me"}, "2g.12gb+me"},
		{"A30", 24576, 4, 24064, nil, "4g.24gb"},
		{"RTX PRO 6000", 97887, 1, 24192, []string{"-me"}, "1g.24gb-me"},
		{"RTX PRO 6000", 97887, 2, 48512, []string{"gfx"}, "2g.48gb+gfx"},
		{"RTX PRO 6000", 97887, 1, 24192, []string{"me.all"}, "1g.24gb+me.all"},
		{"unknown size", 0, 1, 10240, nil, "1g.10gb"},
	}
	for _, tt := range tests {
		if got := composeName(tt.slices, tt.memory*mib, tt.total*mib, tt.attrs); got != tt.want {
			t.Errorf("%s: %s; want %s", tt.board, got, tt.want)
		}
	}
}

func TestNameProfile(t *testing.T) {
	tests := []struct {
		name  string
		enum  int
		p     gpu.Profile
		want  string
		attrs []string
	}{
		{"plain", 0, gpu.Profile{Name: "MIG 1g.5gb"}, "1g.5gb", nil},
		{"media extension", 7, gpu.Profile{Name: "1g.5gb+me"}, "1g.5gb+me", []string{"me"}},
		{"number without a name", 13, gpu.Profile{Slices: 1, Memory: 24 << 30}, "1g.24gb-me", []string{"-me"}},
		{"graphics", 17, gpu.Profile{Name: "3g.72gb+gfx"}, "3g.72gb+gfx", []string{"gfx"}},
		{"number of a newer library", 40, gpu.Profile{Name: "1g.24gb+me.all"}, "1g.24gb+me.all", []string{"me.all"}},
		{
			"number of a newer library, by capability",
			41,
			gpu.Profile{Name: "1g.24gb", Attributes: []string{"gfx"}},
			"1g.24gb",
			[]string{"gfx"},
		},
		{
			"newer and several",
			42,
			gpu.Profile{Name: "1g.24gb+gfx-me", Attributes: []string{"gfx"}},
			"1g.24gb+gfx-me",
			[]string{"-me", "gfx"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name, attrs := nameProfile(tt.enum, giProfile{Profile: tt.p}, 96<<30)
			if name != tt.want {
				t.Errorf("name = %q; want %q", name, tt.want)
			}
			if d := cmp.Diff(tt.attrs, attrs); d != "" {
				t.Errorf("attributes (-want +got):\n%s", d)
			}
		})
	}
}

func TestRowSizes(t *testing.T) {
	tests := []struct {
		driver string
		want   int
	}{
		{"535.43.02", rowSize535},
		{"535.54.03", rowSize535},
		{"535.86.10", rowSize535},
		{"535.98", rowSizeV2},
		{"535.183.01", rowSizeV2},
		{"530.43", rowSizeV2},
		{"580.82.07", rowSizeV2},
		{"", rowSizeV2},
		{"535", rowSizeV2},
	}
	for _, tt := range tests {
		if got := rowSizes(tt.driver)["_v3"]; got != tt.want {
			t.Errorf("%s: rows of %d bytes; want %d", tt.driver, got, tt.want)
		}
	}
	if s := rowSizes("580.1"); s[versionSuffix("nvmlDeviceGetComputeRunningProcesses")] != rowSizeV1 ||
		s[versionSuffix("x_v2")] != rowSizeV2 {
		t.Errorf("sizes by version = %v", s)
	}
}

// TestParseProcesses parses rows of each size in the library's layout.
func TestParseProcesses(t *testing.T) {
	for _, size := range []int{rowSizeV1, rowSizeV2, rowSize535} {
		buf := make([]byte, 2*rowSize535)
		for i := range 2 {
			b := buf[i*size:]
			binary.NativeEndian.PutUint32(b, uint32(100+i))
			binary.NativeEndian.PutUint64(b[8:], uint64(1+i)<<30)
			if size > rowSizeV1 {
				binary.NativeEndian.PutUint32(b[16:], uint32(5+i))
				binary.NativeEndian.PutUint32(b[20:], noInstance)
			}
		}
		got := parseProcesses(buf, 2, size)
		want := []processRow{{100, 1 << 30, 5, noInstance}, {101, 2 << 30, 6, noInstance}}
		if size == rowSizeV1 {
			want[0].gi, want[1].gi = noInstance, noInstance
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(processRow{})); d != "" {
			t.Errorf("rows of %d bytes (-want +got):\n%s", size, d)
		}
	}
}

func TestProcessMemory(t *testing.T) {
	if p := process(
		processRow{pid: 1, memory: math.MaxUint64, gi: noInstance, ci: noInstance}, gpu.ComputeProcess,
	); p.Memory != nil || p.GI != nil ||
		p.CI != nil {
		t.Errorf("not available: %+v; want memory and instances unknown", p)
	}
	if p := process(processRow{pid: 1}, gpu.ComputeProcess); p.Memory == nil || *p.Memory != 0 || p.GI == nil || *p.GI != 0 {
		t.Errorf("zero: %+v; want known zeros", p)
	}
}

func TestPlausible(t *testing.T) {
	in := []gpu.UtilSample{
		{PID: 9, Time: 300, SM: 50},
		{PID: 8, Time: 200, SM: 100, Mem: 100},
		{PID: 7, Time: 100, SM: 10},              // not newer
		{PID: 6, Time: 400, SM: 101},             // impossible
		{PID: 5, Time: 400, SM: 1, Mem: 4000000}, // impossible
		{PID: 0, Time: 400, SM: 1},               // no process
	}
	got, newest := plausible(in, 100)
	want := []gpu.UtilSample{{PID: 8, Time: 200, SM: 100, Mem: 100}, {PID: 9, Time: 300, SM: 50}}
	if d := cmp.Diff(want, got); d != "" || newest != 300 {
		t.Errorf("newest %d; want 300 (-want +got):\n%s", newest, d)
	}
	if got, newest := plausible(nil, 77); len(got) != 0 || newest != 77 {
		t.Errorf("no samples: %v, %d; want the previous time", got, newest)
	}
}

// TestMissingCompute checks for any set of instances that existing and missing ones together are those requested, by
// size.
func TestMissingCompute(t *testing.T) {
	at := func(start, size uint32) *gpu.Placement { return &gpu.Placement{Start: start, Size: size} }
	tests := []struct {
		name string
		want []gpu.NewCompute
		have []gpu.Placement
		out  []gpu.NewCompute
	}{
		{"none exists", []gpu.NewCompute{{Slices: 3}}, nil, []gpu.NewCompute{{Slices: 3}}},
		{"all exist", []gpu.NewCompute{{Slices: 3}}, []gpu.Placement{{Start: 0, Size: 3}}, nil},
		{
			"one of two exists",
			[]gpu.NewCompute{{Slices: 1}, {Slices: 1}},
			[]gpu.Placement{{Start: 1, Size: 1}},
			[]gpu.NewCompute{{Slices: 1}},
		},
		{
			"at another placement",
			[]gpu.NewCompute{{Slices: 1, Placement: at(0, 1)}},
			[]gpu.Placement{{Start: 1, Size: 1}},
			[]gpu.NewCompute{{Slices: 1, Placement: at(0, 1)}},
		},
		{
			"the one with a placement is matched first",
			[]gpu.NewCompute{{Slices: 1}, {Slices: 1, Placement: at(1, 1)}},
			[]gpu.Placement{{Start: 1, Size: 1}},
			[]gpu.NewCompute{{Slices: 1}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.out, gpu.MissingCompute(tt.want, placed(tt.have))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOf(rapid.Uint32Range(1, 7))
		var want []gpu.NewCompute
		for _, n := range sizes.Draw(t, "want") {
			want = append(want, gpu.NewCompute{Slices: n})
		}
		var have []gpu.Placement
		for i, n := range sizes.Draw(t, "have") {
			have = append(have, gpu.Placement{Start: uint32(i), Size: n})
		}
		requested, there, still := map[uint32]int{}, map[uint32]int{}, map[uint32]int{}
		for _, w := range want {
			requested[w.Slices]++
		}
		for _, h := range have {
			there[h.Size]++
		}
		for _, w := range gpu.MissingCompute(want, placed(have)) {
			still[w.Slices]++
		}
		for n := range uint32(8) {
			if still[n] != max(0, requested[n]-there[n]) {
				t.Fatalf("size %d: %d requested, %d exist, %d missing", n, requested[n], there[n], still[n])
			}
		}
	})
}

func TestFieldNumber(t *testing.T) {
	bytes := func(n uint64) (b [8]byte) {
		binary.NativeEndian.PutUint64(b[:], n)
		return b
	}
	const junk = 0xdead << 32 // a short value leaves the rest of the union as it was
	tests := []struct {
		name string
		v    nvml.FieldValue
		want uint64
		ok   bool
	}{
		{"unsigned int", nvml.FieldValue{ValueType: uint32(nvml.VALUE_TYPE_UNSIGNED_INT), Value: bytes(junk | 1)}, 1, true},
		{"signed int", nvml.FieldValue{ValueType: uint32(nvml.VALUE_TYPE_SIGNED_INT), Value: bytes(junk)}, 0, true},
		{"unsigned short", nvml.FieldValue{ValueType: uint32(nvml.VALUE_TYPE_UNSIGNED_SHORT), Value: bytes(junk | 7)}, 7, true},
		{"long", nvml.FieldValue{ValueType: uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG), Value: bytes(junk)}, junk, true},
		{"double", nvml.FieldValue{ValueType: uint32(nvml.VALUE_TYPE_DOUBLE)}, 0, false},
		{"failed", nvml.FieldValue{ValueType: 1, NvmlReturn: 3}, 0, false},
	}
	for _, tt := range tests {
		if got, ok := fieldNumber(tt.v); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %d, %v; want %d, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestEventKinds(t *testing.T) {
	tests := []struct {
		mask uint64
		want gpu.EventKind
		ok   bool
	}{
		{0x8, gpu.EventXID, true},
		{0x100, gpu.EventMIGConfig, true},
		{0x2, gpu.EventECC, true},
		{0x200, gpu.EventECC, true},
		{0x4000, gpu.EventLost, true},
		{0x10, "", false}, // clocks
	}
	for _, tt := range tests {
		if got, ok := eventKind(tt.mask); got != tt.want || ok != tt.ok {
			t.Errorf("%#x is %q, %v; want %q, %v", tt.mask, got, ok, tt.want, tt.ok)
		}
	}
}

func TestHostFiles(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sys/bus/pci/devices/0000:07:00.0/numa_node", "1\n")
	write("sys/bus/pci/devices/0000:08:00.0/numa_node", "-1\n")
	write("proc/driver/nvidia/gpus/0000:07:00.0/information", "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-5f0c\nBus Type: \t PCIe\n")
	write("proc/driver/nvidia/gpus/0000:08:00.0/information", "Model: \t\t NVIDIA A100\n")
	for pci, want := range map[string]int{"0000:07:00.0": 1, "0000:08:00.0": -1, "0000:09:00.0": -1} {
		if got := numaNode(root, pci); got != want {
			t.Errorf("NUMA node of %s = %d; want %d", pci, got, want)
		}
	}
	got, err := kernelGPUs(root)
	want := []kernelGPU{{"0000:07:00.0", "GPU-5f0c"}, {"0000:08:00.0", ""}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(kernelGPU{})); err != nil || d != "" {
		t.Errorf("kernel's GPUs: %v (-want +got):\n%s", err, d)
	}
	if _, err := kernelGPUs(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no driver: %v; want that it does not exist", err)
	}
	if got := pciAddress(nvml.PciInfo{Domain: 0x10000, Bus: 0xe1}); got != "10000:e1:00.0" {
		t.Errorf("wide domain: %s", got)
	}
}

// placed are compute instances at these placements.
func placed(at []gpu.Placement) []gpu.ComputeInstance {
	var out []gpu.ComputeInstance
	for _, p := range at {
		out = append(out, gpu.ComputeInstance{Placement: p})
	}
	return out
}
