//go:build cgo

package nvml

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
)

// everySymbol are the symbols of a library that has all of them.
func everySymbol(t *testing.T) symbols {
	t.Helper()
	var here byte
	s, err := findSymbols(func(string) unsafe.Pointer { return unsafe.Pointer(&here) })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSetMIGModeReturns fails when the two codes, which are of one type, are swapped.
func TestSetMIGModeReturns(t *testing.T) {
	for _, on := range []bool{true, false} {
		d := &mock.Device{SetMigModeFunc: func(mode int) (nvml.Return, nvml.Return) {
			if (mode == nvml.DEVICE_MIG_ENABLE) != on {
				t.Errorf("mode %d asked for; want it on: %v", mode, on)
			}
			return nvml.ERROR_IN_USE, nvml.ERROR_NO_PERMISSION
		}}
		if activation, ret := callSetMIGMode(d, on); activation != nvml.ERROR_IN_USE || ret != nvml.ERROR_NO_PERMISSION {
			t.Errorf("activation %d, return %d; want 19 and 4", activation, ret)
		}
	}
}

// TestSevenSlices has two compute profiles of seven slices, as the vendor's table has. The GPU instance accepts one.
func TestSevenSlices(t *testing.T) {
	profiles := []computeProfile{
		{gpu.ComputeProfile{ID: 0, Slices: 1}, nvml.ComputeInstanceProfileInfo{Id: 0}},
		{gpu.ComputeProfile{ID: 4, Slices: 7}, nvml.ComputeInstanceProfileInfo{Id: 4}},
		{gpu.ComputeProfile{ID: 8, Slices: 7}, nvml.ComputeInstanceProfileInfo{Id: 8}},
	}
	tests := []struct {
		name  string
		codes map[uint32]nvml.Return
		want  nvml.Return
		tried []uint32
	}{
		{"the first", map[uint32]nvml.Return{4: nvml.SUCCESS}, nvml.SUCCESS, []uint32{4}},
		{"the second", map[uint32]nvml.Return{4: nvml.ERROR_NOT_SUPPORTED, 8: nvml.SUCCESS}, nvml.SUCCESS, []uint32{4, 8}},
		{
			"neither",
			map[uint32]nvml.Return{4: nvml.ERROR_NOT_SUPPORTED, 8: nvml.ERROR_NOT_SUPPORTED},
			nvml.ERROR_NOT_SUPPORTED,
			[]uint32{4, 8},
		},
		{"no room", map[uint32]nvml.Return{4: nvml.ERROR_INSUFFICIENT_RESOURCES}, nvml.ERROR_INSUFFICIENT_RESOURCES, []uint32{4}},
	}
	d := &Driver{symbols: everySymbol(t)}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var tried []uint32
			gi := &mock.GpuInstance{
				CreateComputeInstanceFunc: func(i *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
					tried = append(tried, i.Id)
					return &mock.ComputeInstance{}, tt.codes[i.Id]
				},
			}
			if _, ret := d.addOne(gi, profiles, gpu.NewCompute{Slices: 7}); ret != tt.want {
				t.Errorf("code %d; want %d", ret, tt.want)
			}
			if diff := cmp.Diff(tt.tried, tried); diff != "" {
				t.Errorf("tried (-want +got):\n%s", diff)
			}
		})
	}
	if _, ret := d.addOne(&mock.GpuInstance{}, profiles, gpu.NewCompute{Slices: 5}); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("no profile of five slices: code %d; want 2", ret)
	}
}

// TestComputeProfileWalk reads tables with gaps, with more numbers than known here, and without an end.
func TestComputeProfileWalk(t *testing.T) {
	tests := []struct {
		name string
		at   func(enum int) (id uint32, ret nvml.Return)
		want []uint32
		ret  nvml.Return
	}{
		{"gaps", func(e int) (uint32, nvml.Return) {
			switch {
			case e >= 9:
				return 0, nvml.ERROR_INVALID_ARGUMENT
			case e == 0 || e == 2:
				return uint32(e), nvml.SUCCESS
			}
			return 0, nvml.ERROR_NOT_SUPPORTED
		}, []uint32{0, 2}, nvml.SUCCESS},
		{"newer library", func(e int) (uint32, nvml.Return) {
			switch {
			case e >= 30:
				return 0, nvml.ERROR_INVALID_ARGUMENT
			case e == 25:
				return 77, nvml.SUCCESS
			}
			return 0, nvml.ERROR_NOT_SUPPORTED
		}, []uint32{77}, nvml.SUCCESS},
		{"no end", func(int) (uint32, nvml.Return) { return 3, nvml.SUCCESS }, []uint32{3}, nvml.SUCCESS},
		{"lost on the way", func(e int) (uint32, nvml.Return) {
			if e == 1 {
				return 0, nvml.ERROR_GPU_IS_LOST
			}
			return uint32(e), nvml.SUCCESS
		}, nil, nvml.ERROR_GPU_IS_LOST},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			queries := 0
			gi := &mock.GpuInstance{GetComputeInstanceProfileInfoFunc: func(e, engine int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
				queries++
				id, ret := tt.at(e)
				return nvml.ComputeInstanceProfileInfo{Id: id}, ret
			}}
			d, v := &Driver{symbols: everySymbol(t)}, &device{}
			found, ret := d.computeProfiles(v, gi, 19)
			var ids []uint32
			for _, p := range found {
				ids = append(ids, p.ID)
			}
			if diff := cmp.Diff(tt.want, ids); diff != "" || ret != tt.ret {
				t.Errorf("code %d; want %d (-want +got):\n%s", ret, tt.ret, diff)
			}
			before := queries
			if _, ret := d.computeProfiles(v, gi, 19); ret == nvml.SUCCESS && queries != before {
				t.Error("a second call read the profiles again")
			}
		})
	}
}

// TestMIGDeviceWalk finds the MIG device of a compute instance whose information does not contain it.
func TestMIGDeviceWalk(t *testing.T) {
	mig := func(gi, ci int, id string) *mock.Device {
		return &mock.Device{
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return gi, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return ci, nvml.SUCCESS },
			GetUUIDFunc:              func() (string, nvml.Return) { return id, nvml.SUCCESS },
		}
	}
	present := map[int]*mock.Device{0: mig(7, 0, "MIG-a"), 2: mig(9, 0, "MIG-b"), 3: mig(9, 1, "MIG-c")}
	parent := &mock.Device{
		GetMaxMigDeviceCountFunc: func() (int, nvml.Return) { return 7, nvml.SUCCESS },
		GetMigDeviceHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if d := present[i]; d != nil {
				return d, nvml.SUCCESS
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
	}
	d, v := &Driver{symbols: everySymbol(t)}, &device{handle: parent}
	for _, tt := range []struct {
		gi, ci uint32
		want   gpu.UUID
	}{{9, 1, "MIG-c"}, {7, 0, "MIG-a"}, {5, 0, ""}} {
		_, id, ret := d.migDevice(v, tt.gi, nvml.ComputeInstanceInfo{Id: tt.ci})
		if ret != nvml.SUCCESS || id != tt.want {
			t.Errorf("instance %d/%d is %q, code %d; want %q", tt.gi, tt.ci, id, ret, tt.want)
		}
	}
}

// TestUndoCreate lets the undo of a creation fail: the error is the first one, and its text names both.
func TestUndoCreate(t *testing.T) {
	d, v := &Driver{}, &device{id: "GPU-1"}
	cause := failf("create instance", "GPU-1", nvml.ERROR_INSUFFICIENT_RESOURCES, "compute instance of 3 slices")
	var order []string
	ci := &mock.ComputeInstance{DestroyFunc: func() nvml.Return { order = append(order, "compute"); return nvml.SUCCESS }}
	gi := &mock.GpuInstance{DestroyFunc: func() nvml.Return { order = append(order, "gpu"); return nvml.ERROR_IN_USE }}
	err := d.undoCreate(v, "create instance", gi, []nvml.ComputeInstance{ci}, cause)
	var e *gpu.Error
	if !errors.Is(err, gpu.ErrInsufficientResources) || !errors.As(err, &e) || e.Code != 23 ||
		!strings.Contains(err.Error(), "cannot undo the creation: in use") {
		t.Errorf("error = %v", err)
	}
	if diff := cmp.Diff([]string{"compute", "gpu"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	gi.DestroyFunc = func() nvml.Return { return nvml.SUCCESS }
	if err := d.undoCreate(v, "create instance", gi, nil, cause); err != cause { //nolint:errorlint // identity is meant
		t.Errorf("error = %v; want the unchanged cause", err)
	}
}

// TestNVLinks reads links of every kind, missing links, and links that go down while they are read.
func TestNVLinks(t *testing.T) {
	const (
		up, unsupported, invalid = nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT
		down                     = nvml.Return(-1) // not a code: the call succeeds and reports the link as down
	)
	type end struct {
		state, kind, pci nvml.Return
		is               nvml.IntNvLinkDeviceType
		bus              uint32
	}
	gpuAt := func(bus uint32) end { return end{is: nvml.NVLINK_DEVICE_TYPE_GPU, bus: bus} }
	toSwitch := end{is: nvml.NVLINK_DEVICE_TYPE_SWITCH}
	for _, tt := range []struct {
		name  string
		links []end
		want  gpu.NVLinks
		ret   nvml.Return
	}{
		{"none", nil, gpu.NVLinks{}, up},
		{"no bridge", []end{{state: down}, {state: down}}, gpu.NVLinks{Down: 2}, up},
		{"a bridge of two links", []end{gpuAt(0x47), gpuAt(0x47), {state: down}}, gpu.NVLinks{Peers: []string{"0000:47:00.0"}, Down: 1}, up},
		{"two peers, with a gap", []end{gpuAt(0x47), {state: unsupported}, {state: invalid}, gpuAt(0x0f)}, gpu.NVLinks{Peers: []string{"0000:0f:00.0", "0000:47:00.0"}}, up},
		{"switches", []end{toSwitch, toSwitch}, gpu.NVLinks{Switches: 2}, up},
		{"something else", []end{{is: nvml.NVLINK_DEVICE_TYPE_IBMNPU}, {is: nvml.NVLINK_DEVICE_TYPE_UNKNOWN}}, gpu.NVLinks{Unknown: 2}, up},
		{"went down in between", []end{{kind: invalid}, {pci: unsupported}}, gpu.NVLinks{Unknown: 2}, up},
		{"lost at the state", []end{{state: nvml.ERROR_GPU_IS_LOST}}, gpu.NVLinks{}, nvml.ERROR_GPU_IS_LOST},
		{"lost at the kind", []end{{kind: nvml.ERROR_GPU_IS_LOST}}, gpu.NVLinks{}, nvml.ERROR_GPU_IS_LOST},
		{"lost at the address", []end{{pci: nvml.ERROR_GPU_IS_LOST}}, gpu.NVLinks{}, nvml.ERROR_GPU_IS_LOST},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := func(link int) end {
				if link >= len(tt.links) {
					return end{state: unsupported}
				}
				return tt.links[link]
			}
			h := &mock.Device{
				GetNvLinkStateFunc: func(link int) (nvml.EnableState, nvml.Return) {
					if e := at(link); e.state != down {
						return nvml.FEATURE_ENABLED, e.state
					}
					return nvml.FEATURE_DISABLED, nvml.SUCCESS
				},
				GetNvLinkRemoteDeviceTypeFunc: func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) { return at(link).is, at(link).kind },
				GetNvLinkRemotePciInfoFunc: func(link int) (nvml.PciInfo, nvml.Return) {
					return nvml.PciInfo{Bus: at(link).bus}, at(link).pci
				},
			}
			d := &Driver{symbols: everySymbol(t), devices: map[gpu.UUID]*device{"GPU-1": {id: "GPU-1", handle: h}}}
			got, err := d.NVLinks(t.Context(), "GPU-1")
			if want := sentinel(tt.ret); !errors.Is(err, want) {
				t.Errorf("error %v; want %v", err, want)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := (&Driver{symbols: symbols{lacking: map[feature]string{nvLinks: "lacks it"}}}).NVLinks(
		t.Context(), "GPU-1",
	); !errors.Is(err, gpu.ErrMissing) {
		t.Errorf("a library without the functions: %v", err)
	}
}

// TestMemoryLimit checks the arguments, the value for "no limit", and the codes.
func TestMemoryLimit(t *testing.T) {
	var set []uint64
	ret := nvml.SUCCESS
	hard := noLimit
	h := &mock.Device{
		SetMemoryLimits_v1Func: func(cgroup string, minimum, hard uint64) nvml.Return {
			if cgroup != "/cg/a" {
				t.Errorf("cgroup %q", cgroup)
			}
			set = append(set, minimum, hard)
			return ret
		},
		GetMemoryLimits_v1Func: func(string) (nvml.MemoryLimits_v1, nvml.Return) {
			return nvml.MemoryLimits_v1{HardLimit: hard, CurrentUsed: 5}, ret
		},
	}
	d := &Driver{symbols: everySymbol(t), devices: map[gpu.UUID]*device{"GPU-1": {id: "GPU-1", handle: h}}}
	if err := errors.Join(
		d.SetMemoryLimit(t.Context(), "GPU-1", "/cg/a", new(uint64(7))), d.SetMemoryLimit(t.Context(), "GPU-1", "/cg/a", nil),
	); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]uint64{0, 7, 0, 1<<64 - 1}, set); diff != "" {
		t.Errorf("set (-want +got):\n%s", diff)
	}
	for value, want := range map[uint64]gpu.MemoryLimit{noLimit: {Used: 5}, 7: {Hard: new(uint64(7)), Used: 5}} {
		hard = value
		got, err := d.MemoryLimit(t.Context(), "GPU-1", "/cg/a")
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	for code, want := range map[nvml.Return]error{nvml.ERROR_NOT_FOUND: gpu.ErrNotFound, nvml.ERROR_NOT_SUPPORTED: gpu.ErrNotSupported, nvml.ERROR_OPERATING_SYSTEM: gpu.ErrInvalid} {
		ret = code
		if _, err := d.MemoryLimit(t.Context(), "GPU-1", "/cg/a"); !errors.Is(err, want) {
			t.Errorf("read: code %d is %v", code, err)
		}
		if err := d.SetMemoryLimit(t.Context(), "GPU-1", "/cg/a", nil); !errors.Is(err, want) {
			t.Errorf("set: code %d is %v", code, err)
		}
	}
	old := &Driver{symbols: symbols{lacking: map[feature]string{memoryLimits: "lacks it"}}}
	if _, err := old.MemoryLimit(t.Context(), "GPU-1", "/cg/a"); !errors.Is(err, gpu.ErrMissing) {
		t.Errorf("a library without the functions: %v", err)
	}
}

func TestRawHandle(t *testing.T) {
	if rawHandle(&mock.Device{}) != nil {
		t.Error("a device of another type has a handle")
	}
	if rawHandle(nil) != nil {
		t.Error("no device has a handle")
	}
}
