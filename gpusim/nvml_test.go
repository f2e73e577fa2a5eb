package gpusim_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpusim"
)

// nvml makes calls as the shim does.
type nvml struct {
	t testing.TB
	c *gpusim.Client
}

func library(t testing.TB, n *gpusim.Node, privileged bool) nvml {
	l := nvml{t, n.NVML(100, privileged)}
	t.Cleanup(l.c.Close)
	if ret := l.ret("nvmlInit_v2"); ret != gpusim.Success {
		t.Fatalf("init: %d", ret)
	}
	return l
}

func (l nvml) reply(fn string, args ...uint64) gpusim.Reply {
	l.t.Helper()
	return l.c.Call(l.t.Context(), gpusim.Request{Func: fn, Args: args})
}

func (l nvml) ret(fn string, args ...uint64) gpusim.Ret {
	l.t.Helper()
	return l.reply(fn, args...).Ret
}

func (l nvml) one(fn string, args ...uint64) uint64 {
	l.t.Helper()
	r := l.reply(fn, args...)
	if r.Ret != gpusim.Success || len(r.Values) == 0 {
		l.t.Fatalf("%s: %+v", fn, r)
	}
	return r.Values[0]
}

func TestCallsBeforeInitAreRefused(t *testing.T) {
	n := node(t, nil, "A30-24GB")
	l := nvml{t, n.NVML(1, true)}
	defer l.c.Close()
	if ret := l.ret("nvmlDeviceGetCount_v2"); ret != gpusim.Uninitialized {
		t.Errorf("before: %d", ret)
	}
	l.ret("nvmlInit_v2")
	l.ret("nvmlInit_v2")
	l.ret("nvmlShutdown")
	if ret := l.ret("nvmlDeviceGetCount_v2"); ret != gpusim.Success {
		t.Errorf("after two inits and one shutdown: %d", ret)
	}
	l.ret("nvmlShutdown")
	if ret := l.ret("nvmlDeviceGetCount_v2"); ret != gpusim.Uninitialized {
		t.Errorf("after the last shutdown: %d", ret)
	}
}

func TestNodesWithoutGPUsNeedTheFlag(t *testing.T) {
	n := node(t, nil)
	l := nvml{t, n.NVML(1, true)}
	defer l.c.Close()
	if ret := l.ret("nvmlInit_v2"); ret != gpusim.GPUNotFound {
		t.Errorf("without the flag: %d", ret)
	}
	if ret := l.ret("nvmlInit_v2", 1); ret != gpusim.Success {
		t.Errorf("with the flag: %d", ret)
	}
}

func TestStaleHandlesAreInvalid(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	l := library(t, n, true)
	dev := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
	gi := l.one("nvmlDeviceCreateGpuInstanceWithPlacement", dev, 19, 2, 1)
	ci := l.one("nvmlGpuInstanceCreateComputeInstance", gi, 0)
	mig := l.one("nvmlDeviceGetMigDeviceHandleByIndex", dev, 0)
	if ret := l.ret("nvmlGpuInstanceDestroy", gi); ret != gpusim.InUse {
		t.Errorf("destroying a GPU instance with a compute instance: %d", ret)
	}
	for _, h := range []uint64{dev, gi, mig, 0, ^uint64(0), 0xdead} {
		if ret := l.ret("nvmlComputeInstanceDestroy", h); ret != gpusim.InvalidArgument {
			t.Errorf("a handle %#x of another kind: %d", h, ret)
		}
	}
	if ret := l.ret("nvmlComputeInstanceDestroy", ci); ret != gpusim.Success {
		t.Fatal(ret)
	}
	if ret := l.ret("nvmlGpuInstanceDestroy", gi); ret != gpusim.Success {
		t.Fatal(ret)
	}
	// The same placement has the same ids, but other handles.
	again := l.one("nvmlDeviceCreateGpuInstanceWithPlacement", dev, 19, 2, 1)
	l.one("nvmlGpuInstanceCreateComputeInstance", again, 0)
	for fn, h := range map[string]uint64{"nvmlGpuInstanceGetInfo": gi, "nvmlComputeInstanceGetInfo_v2": ci, "nvmlDeviceGetUUID": mig} {
		if ret := l.ret(fn, h); ret != gpusim.InvalidArgument {
			t.Errorf("%s of a stale handle: %d", fn, ret)
		}
	}
	n.Reboot()
	l.ret("nvmlInit_v2")
	if ret := l.ret("nvmlDeviceGetUUID", dev); ret != gpusim.InvalidArgument {
		t.Errorf("a GPU's handle after a reboot: %d", ret)
	}
}

func TestChangesNeedPrivilege(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	l := library(t, n, false)
	dev := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
	for fn, args := range map[string][]uint64{
		"nvmlDeviceSetMigMode": {dev, 0}, "nvmlDeviceSetComputeMode": {dev, 3}, "nvmlDeviceCreateGpuInstance": {dev, 19},
		"nvmlDeviceGetGpuInstances": {dev, 19}, "nvmlDeviceGetGpuInstancePossiblePlacements_v2": {dev, 19},
		"nvmlDeviceGetGpuInstanceRemainingCapacity": {dev, 19}, "nvmlDeviceGetComputeRunningProcesses_v3": {dev},
	} {
		if ret := l.ret(fn, args...); ret != gpusim.NoPermission {
			t.Errorf("%s: %d", fn, ret)
		}
	}
	for _, fn := range []string{"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetUUID"} {
		if ret := l.ret(fn, dev); ret != gpusim.Success {
			t.Errorf("%s: %d", fn, ret)
		}
	}
}

func TestProfilesAreWalkedByEnum(t *testing.T) {
	for version, last := range map[string]uint64{"535.183.01": 0xA, "580.95.05": 0x12} {
		n := node(t, func(c *gpusim.Config) { withMIG(c); c.DriverVersion = version }, "A100-SXM4-40GB")
		l := library(t, n, true)
		dev := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
		var ids []uint64
		enum := uint64(0)
		for ; ; enum++ {
			r := l.reply("nvmlDeviceGetGpuInstanceProfileInfoV", dev, enum)
			if r.Ret == gpusim.InvalidArgument {
				break
			}
			if r.Ret == gpusim.Success {
				ids = append(ids, r.Values[0])
			} else if r.Ret != gpusim.NotSupported {
				t.Fatalf("enum %d: %d", enum, r.Ret)
			}
		}
		if enum != last {
			t.Errorf("%s: the walk ends at %d, want %d", version, enum, last)
		}
		if diff := cmp.Diff([]uint64{19, 14, 9, 5, 0, 20, 15}, ids); diff != "" {
			t.Errorf("%s: ids by enum (-want +got):\n%s", version, diff)
		}
	}
}

func TestDriverPrefersHighPlacements(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	l := library(t, n, true)
	dev := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
	var starts []uint64
	for {
		r := l.reply("nvmlDeviceCreateGpuInstance", dev, 19)
		if left := l.one("nvmlDeviceGetGpuInstanceRemainingCapacity", dev, 19); r.Ret != gpusim.Success {
			if r.Ret != gpusim.InsufficientResources || left != 0 {
				t.Errorf("refused with %d, %d left", r.Ret, left)
			}
			break
		}
		starts = append(starts, l.reply("nvmlGpuInstanceGetInfo", r.Values[0]).Values[3])
	}
	if diff := cmp.Diff([]uint64{6, 4, 5, 0, 1, 2, 3}, starts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCapacityCountsWhatFits(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	l := library(t, n, true)
	dev := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
	l.one("nvmlDeviceCreateGpuInstanceWithPlacement", dev, 19, 2, 1)
	for profile, want := range map[uint64]uint64{19: 6, 20: 1, 15: 3, 14: 2, 9: 1, 5: 0, 0: 0} {
		if got := l.one("nvmlDeviceGetGpuInstanceRemainingCapacity", dev, profile); got != want {
			t.Errorf("profile %d next to a 1g at 2: %d, want %d", profile, got, want)
		}
	}
}

func TestComputeProfilesOfEachSize(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	l := library(t, n, true)
	dev := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
	for _, c := range []struct {
		profile, start, size uint64
		want                 map[uint64]uint64 // count by slices
	}{
		{19, 0, 1, map[uint64]uint64{1: 1}},
		{14, 0, 2, map[uint64]uint64{1: 2, 2: 1}},
		{9, 0, 4, map[uint64]uint64{1: 3, 2: 1, 3: 1}},
		{5, 0, 4, map[uint64]uint64{1: 4, 2: 2, 4: 1}},
		{0, 0, 8, map[uint64]uint64{1: 7, 2: 3, 3: 2, 4: 1, 7: 1}},
	} {
		gi := l.one("nvmlDeviceCreateGpuInstanceWithPlacement", dev, c.profile, c.start, c.size)
		got := map[uint64]uint64{}
		for enum := uint64(0); ; enum++ {
			r := l.reply("nvmlGpuInstanceGetComputeInstanceProfileInfo", gi, enum, 0)
			if r.Ret == gpusim.InvalidArgument {
				break
			}
			if r.Ret == gpusim.Success {
				got[r.Values[1]] = r.Values[2]
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("profile %d (-want +got):\n%s", c.profile, diff)
		}
		l.ret("nvmlGpuInstanceDestroy", gi)
	}
}

func TestFieldValues(t *testing.T) {
	n := node(t, nil, "A100-SXM4-40GB", "H100-SXM5-80GB")
	l := library(t, n, true)
	for i, resetless := range []uint64{0, 1} {
		dev := l.one("nvmlDeviceGetHandleByIndex_v2", uint64(i))
		got := l.reply("nvmlDeviceGetFieldValues", dev, 184, 230, 9999).Values
		want := []uint64{0, 1, resetless, 0, 1, 0, uint64(gpusim.NotSupported), 1, 0}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("GPU %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestUnknownFunctions(t *testing.T) {
	l := library(t, node(t, nil, "A30-24GB"), true)
	if ret := l.ret("nvmlDeviceGetVgpuUtilization"); ret != gpusim.FunctionNotFound {
		t.Errorf("%d", ret)
	}
}

func TestPCIAddressesInAnyForm(t *testing.T) {
	l := library(t, node(t, nil, "A30-24GB"), true)
	for _, id := range []string{"00000000:01:00.0", "0000:01:00.0", "01:00.0"} {
		if r := l.c.Call(t.Context(), gpusim.Request{Func: "nvmlDeviceGetHandleByPciBusId_v2", Text: id}); r.Ret != gpusim.Success {
			t.Errorf("%s: %d", id, r.Ret)
		}
	}
	if r := l.c.Call(
		t.Context(), gpusim.Request{Func: "nvmlDeviceGetHandleByPciBusId_v2", Text: "0000:02:00.0"},
	); r.Ret != gpusim.NotFound {
		t.Errorf("no such address: %d", r.Ret)
	}
}
