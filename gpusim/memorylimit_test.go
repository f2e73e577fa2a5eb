package gpusim_test

import (
	"errors"
	"path"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
)

// cgroups are cgroups of a test: ids by path, and the cgroup of each process.
type cgroups struct {
	ids  map[string]uint64
	of   map[int]string
	dmem map[string]bool
}

func (c *cgroups) Root() string       { return "/cg" }
func (c *cgroups) ID(p string) uint64 { return c.ids[p] }
func (c *cgroups) Dmem(p string) bool { return c.dmem[p] }
func (c *cgroups) Of(pid int) (string, error) {
	if cg, ok := c.of[pid]; ok {
		return cg, nil
	}
	return "", errors.New("no such process")
}

func limitedNode(t *testing.T, change func(*gpusim.MemoryLimitConfig)) (*gpusim.Node, *cgroups) {
	t.Helper()
	all := &cgroups{
		ids:  map[string]uint64{"/cg": 1, "/cg/a": 2, "/cg/a/leaf": 3, "/cg/b": 4},
		of:   map[int]string{10: "/cg/a/leaf", 11: "/cg/b", 12: "/cg/a"},
		dmem: map[string]bool{"/cg/a": true, "/cg/a/leaf": true},
	}
	n := node(t, func(cfg *gpusim.Config) {
		cfg.ContextMemory = 512 * gpusim.MiB
		cfg.Cgroups = all
		cfg.MemoryLimits = gpusim.MemoryLimitConfig{Accounting: gpusim.MemoryAccountingDmem}
		if change != nil {
			change(&cfg.MemoryLimits)
		}
	}, "A30-24GB")
	return n, all
}

func misc(c *gpusim.MemoryLimitConfig) { c.Accounting = gpusim.MemoryAccountingMisc }

const gib = uint64(1 << 30)

// TestMemoryLimits checks at which allocation a limit of a cgroup, or of the one above it, is reached.
func TestMemoryLimits(t *testing.T) {
	for _, c := range []struct {
		name    string
		config  func(*gpusim.MemoryLimitConfig)
		limited string
		pid     int
		want    uint64 // GiB that can be allocated in addition to the context, up to 8
	}{
		{"its own cgroup", nil, "/cg/a/leaf", 10, 3},
		{"its own cgroup, misc", misc, "/cg/a/leaf", 10, 3},
		{"the cgroup above, dmem", nil, "/cg/a", 10, 3},
		{"the cgroup above, misc", misc, "/cg/a", 10, 8},
		{"another cgroup", nil, "/cg/a", 11, 8},
		{"a process in no cgroup", nil, "/cg/a", 99, 8},
		{"the context does not count", func(c *gpusim.MemoryLimitConfig) { c.ContextFree = true }, "/cg/a/leaf", 10, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, _ := limitedNode(t, c.config)
			d, ids := port(t, n)
			if err := d.SetMemoryLimit(t.Context(), ids[0], c.limited, new(4*gib)); err != nil {
				t.Fatal(err)
			}
			ctx := open(t, n, gpusim.ContextSpec{PID: c.pid, Device: "0"})
			got := uint64(0)
			for ; got < 8; got++ {
				if err := ctx.Alloc(gib); err != nil {
					if cudaCode(err) != 2 {
						t.Fatal(err)
					}
					break
				}
			}
			if got != c.want {
				t.Errorf("%d GiB were allocated, want %d", got, c.want)
			}
			if err := ctx.AllocManaged(6 * gib); err != nil {
				t.Errorf("managed memory is limited: %v", err)
			}
			if got == 8 {
				return
			}
			// What is freed can be allocated again.
			if err := errors.Join(ctx.Free(gib), ctx.Alloc(gib)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMemoryLimitsAreReadBack(t *testing.T) {
	n, all := limitedNode(t, nil)
	d, ids := port(t, n)
	read := func(cg string) gpu.MemoryLimit {
		t.Helper()
		l, err := d.MemoryLimit(t.Context(), ids[0], cg)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if diff := cmp.Diff(gpu.MemoryLimit{}, read("/cg/a")); diff != "" {
		t.Errorf("a cgroup without a limit (-want +got):\n%s", diff)
	}
	for _, cg := range []string{"/cg/a", "/cg/a/leaf"} {
		if err := d.SetMemoryLimit(t.Context(), ids[0], cg, new(4*gib)); err != nil {
			t.Fatal(err)
		}
	}
	ctx := open(t, n, gpusim.ContextSpec{PID: 10, Device: "0"})
	for _, cg := range []string{"/cg/a", "/cg/a/leaf"} {
		if diff := cmp.Diff(gpu.MemoryLimit{Hard: new(4 * gib), Used: 512 * gpusim.MiB}, read(cg)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", cg, diff)
		}
	}
	// A process that moves leaves what it has allocated.
	all.of[10] = "/cg/b"
	if err := ctx.Alloc(6 * gib); err != nil {
		t.Error(err)
	}
	if got := read("/cg/a").Used; got != 512*gpusim.MiB {
		t.Errorf("%d bytes are charged to the former cgroup", got)
	}
	ctx.Close()
	if err := d.SetMemoryLimit(t.Context(), ids[0], "/cg/a", nil); err != nil || read("/cg/a").Hard != nil {
		t.Errorf("the limit was not removed: %v", err)
	}
	// A cgroup that is created again has no limit.
	all.ids["/cg/a/leaf"] = 7
	if diff := cmp.Diff(gpu.MemoryLimit{}, read("/cg/a/leaf")); diff != "" {
		t.Errorf("a cgroup created again (-want +got):\n%s", diff)
	}
	if leaked := n.View(0).GPUs[0].Leaked; leaked != 0 {
		t.Errorf("%d bytes of reservations are left, though none was made", leaked)
	}
}

// TestReservationsLeak shows why the port sets none: what a removed cgroup reserved stays reserved above it.
func TestReservationsLeak(t *testing.T) {
	n, all := limitedNode(t, nil)
	c := n.NVML(1, true)
	defer c.Close()
	call := func(fn, text string, args ...uint64) gpusim.Reply {
		t.Helper()
		r := c.Call(t.Context(), gpusim.Request{Func: fn, Text: text, Args: args})
		if r.Ret != gpusim.Success {
			t.Fatalf("%s: code %d", fn, r.Ret)
		}
		return r
	}
	call("nvmlInit_v2", "")
	device := call("nvmlDeviceGetHandleByIndex_v2", "", 0).Values[0]
	call("nvmlDeviceSetMemoryLimits_v1", "/cg/a/leaf", device, gib, 2*gib)
	delete(all.ids, "/cg/a/leaf")
	call("nvmlDeviceGetMemoryLimits_v1", "/cg/a", device)
	if leaked := n.View(0).GPUs[0].Leaked; leaked != gib {
		t.Errorf("%d bytes of reservations are left, want 1 GiB", leaked)
	}
}

// TestAProcessSeesItsOwnLimit: as the memory of the GPU, the driver shows the limit of the cgroup that the process is in, and
// not of one above it.
func TestAProcessSeesItsOwnLimit(t *testing.T) {
	n, _ := limitedNode(t, nil)
	d, ids := port(t, n)
	total := func(pid int) uint64 {
		t.Helper()
		c := n.NVML(pid, false)
		defer c.Close()
		c.Call(t.Context(), gpusim.Request{Func: "nvmlInit_v2"})
		device := c.Call(t.Context(), gpusim.Request{Func: "nvmlDeviceGetHandleByIndex_v2", Args: []uint64{0}}).Values[0]
		return c.Call(t.Context(), gpusim.Request{Func: "nvmlDeviceGetMemoryInfo_v2", Args: []uint64{device}}).Values[0]
	}
	whole := total(10)
	if err := d.SetMemoryLimit(t.Context(), ids[0], "/cg/a", new(4*gib)); err != nil {
		t.Fatal(err)
	}
	if got := total(10); got != whole {
		t.Errorf("with a limit above it sees %d bytes, want all", got)
	}
	if err := d.SetMemoryLimit(t.Context(), ids[0], "/cg/a/leaf", new(4*gib)); err != nil {
		t.Fatal(err)
	}
	if got := total(10); got != 4*gib {
		t.Errorf("with its own limit it sees %d bytes", got)
	}
	if got := total(11); got != whole {
		t.Errorf("another process sees %d bytes", got)
	}
}

func TestMemoryLimitsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		config func(*gpusim.MemoryLimitConfig)
		cgroup string
		hard   *uint64
		set    error
		read   error
	}{
		{"no dmem files", nil, "/cg/b", new(gib), gpu.ErrNotFound, gpu.ErrNotFound},
		{"misc needs no files", misc, "/cg/b", new(gib), nil, nil},
		{"no such cgroup", misc, "/cg/none", new(gib), gpu.ErrInvalid, gpu.ErrInvalid},
		{"above the memory of the GPU", misc, "/cg/b", new(25 * gib), gpu.ErrInvalid, nil},
		{"off", func(c *gpusim.MemoryLimitConfig) { c.Accounting = gpusim.MemoryAccountingOff }, "/cg/a", new(gib), gpu.ErrNotSupported, gpu.ErrNotSupported},
		{"unset fails, misc", func(c *gpusim.MemoryLimitConfig) { misc(c); c.UnsetFails = true }, "/cg/b", nil, nil, gpu.ErrNotSupported},
		{"unset fails, dmem", func(c *gpusim.MemoryLimitConfig) { c.UnsetFails = true }, "/cg/a", nil, nil, gpu.ErrNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, _ := limitedNode(t, c.config)
			d, ids := port(t, n)
			if err := d.SetMemoryLimit(t.Context(), ids[0], c.cgroup, c.hard); !errors.Is(err, c.set) {
				t.Errorf("set: %v, want %v", err, c.set)
			}
			if _, err := d.MemoryLimit(t.Context(), ids[0], c.cgroup); !errors.Is(err, c.read) {
				t.Errorf("read: %v, want %v", err, c.read)
			}
		})
	}
	n := node(t, func(cfg *gpusim.Config) {
		withMIG(cfg)
		cfg.Cgroups = &cgroups{ids: map[string]uint64{"/cg": 1, "/cg/a": 2}}
		cfg.MemoryLimits.Accounting = gpusim.MemoryAccountingMisc
	}, "A100-SXM4-40GB")
	d, ids := port(t, n)
	if err := d.SetMemoryLimit(t.Context(), ids[0], path.Join("/cg", "a"), nil); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("with MIG mode on: %v", err)
	}
	d, ids = port(t, node(t, nil, "A30-24GB"))
	if err := d.SetMemoryLimit(t.Context(), ids[0], "/cg/a", nil); !errors.Is(err, gpu.ErrMissing) {
		t.Errorf("a driver before R615: %v", err)
	}
}
