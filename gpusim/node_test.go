package gpusim_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/nodefile"
)

func model(t testing.TB, name string) *gpusim.Model {
	t.Helper()
	m, err := nodefile.Model(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// node returns a node with one GPU of each model.
func node(t testing.TB, change func(*gpusim.Config), models ...string) *gpusim.Node {
	t.Helper()
	cfg := gpusim.Config{
		DriverVersion: "580.95.05", CUDAVersion: 13000, ContextMemory: 300 * gpusim.MiB, ServerMemory: 30 * gpusim.MiB,
		MonitorsBlockReset: true,
	}
	for i, name := range models {
		cfg.GPUs = append(cfg.GPUs, gpusim.GPUConfig{Model: model(t, name), PCI: "0000:0" + string(rune('1'+i)) + ":00.0"})
	}
	if change != nil {
		change(&cfg)
	}
	n, err := gpusim.New(cfg, engine.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// port opens the port and returns the UUIDs of the GPUs.
func port(t testing.TB, n *gpusim.Node) (*gpusim.Driver, []gpu.UUID) {
	t.Helper()
	d := n.Driver(os.Getpid())
	t.Cleanup(func() { _ = d.Close() })
	info, err := d.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []gpu.UUID
	for _, g := range info.GPUs {
		ids = append(ids, g.UUID)
	}
	return d, ids
}

func withMIG(cfg *gpusim.Config) {
	for i := range cfg.GPUs {
		cfg.GPUs[i].MIG = true
	}
}

func open(t testing.TB, n *gpusim.Node, spec gpusim.ContextSpec) *gpusim.Context {
	t.Helper()
	c, err := n.OpenContext(spec)
	if err != nil {
		t.Fatalf("context %+v: %v", spec, err)
	}
	t.Cleanup(c.Close)
	return c
}

func create(t testing.TB, d *gpusim.Driver, id gpu.UUID, profile, start, size uint32) gpu.Instance {
	t.Helper()
	in, err := d.CreateInstance(t.Context(), id, gpu.NewInstance{ProfileID: profile, Placement: gpu.Placement{Start: start, Size: size}})
	if err != nil {
		t.Fatalf("create %d at %d: %v", profile, start, err)
	}
	return in
}

func TestEveryModelIsUsable(t *testing.T) {
	names, err := nodefile.Models()
	if err != nil || len(names) < 4 {
		t.Fatalf("models %v, %v: want at least four", names, err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			n := node(t, withMIG, name)
			d, ids := port(t, n)
			profiles, err := d.Profiles(t.Context(), ids[0])
			if err != nil {
				t.Fatal(err)
			}
			if profiles.Width != model(t, name).Grid {
				t.Errorf("width %d, grid %d", profiles.Width, model(t, name).Grid)
			}
			for _, p := range profiles.GI {
				// Max instances of the profile fit, and not more.
				var created []gpu.Instance
				end := uint32(0)
				for _, at := range p.Placements {
					if at.Start < end {
						continue
					}
					in, err := d.CreateInstance(t.Context(), ids[0], gpu.NewInstance{ProfileID: p.ID, Placement: at})
					if len(created) == int(p.Max) {
						if !errors.Is(err, gpu.ErrInsufficientResources) {
							t.Errorf("%s: one more than %d: %v", p.Name, p.Max, err)
						}
						break
					}
					if err != nil {
						t.Fatalf("%s at %d: %v", p.Name, at.Start, err)
					}
					created, end = append(created, in), at.Start+at.Size
				}
				if len(created) != int(p.Max) {
					t.Errorf("%s: created %d, want the profile's maximum of %d", p.Name, len(created), p.Max)
				}
				for _, in := range created {
					if err := d.DestroyInstance(t.Context(), ids[0], in.ID); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// states counts all legal sets of instances of some profiles, and the maximal ones, to which no instance can be added.
func states(t *testing.T, n *gpusim.Node, d *gpusim.Driver, id gpu.UUID, use func(gpu.Profile) bool) (all, maximal int) {
	profiles, err := d.Profiles(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	type choice struct {
		profile uint32
		at      gpu.Placement
	}
	var choices []choice
	for _, p := range profiles.GI {
		for _, at := range p.Placements {
			if use(p) {
				choices = append(choices, choice{p.ID, at})
			}
		}
	}
	var walk func(from int)
	walk = func(from int) {
		all++
		full := true
		for i, c := range choices {
			in, err := d.CreateInstance(t.Context(), id, gpu.NewInstance{ProfileID: c.profile, Placement: c.at})
			if err != nil {
				continue
			}
			full = false
			if i >= from {
				walk(i + 1)
			}
			if err := d.DestroyInstance(t.Context(), id, in.ID); err != nil {
				t.Fatal(err)
			}
		}
		if full {
			maximal++
		}
	}
	walk(0)
	return all, maximal
}

// TestLayoutCounts: for a board with eight memory slices and the five classic profiles, 19 maximal layouts are published.
// There are 298 layouts in total, and with the other two profiles 2319 and 239 maximal ones.
func TestLayoutCounts(t *testing.T) {
	for _, c := range []struct {
		name         string
		use          func(gpu.Profile) bool
		all, maximal int
	}{
		{"five classic profiles", func(p gpu.Profile) bool { return p.ID != 15 && p.ID != 20 }, 298, 19},
		{"all seven profiles", func(gpu.Profile) bool { return true }, 2319, 239},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t, withMIG, "A100-SXM4-40GB")
			d, ids := port(t, n)
			all, maximal := states(t, n, d, ids[0], c.use)
			if all != c.all || maximal != c.maximal {
				t.Errorf("%d layouts, %d maximal; want %d and %d", all, maximal, c.all, c.maximal)
			}
		})
	}
}

func TestIdsFollowThePlacement(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB", "A30-24GB", "RTX-PRO-6000-96GB")
	d, ids := port(t, n)
	// The first block are ids that A100-class boards were observed to use.
	for _, c := range []struct {
		gpu                  int
		profile, start, size uint32
		want                 uint32
	}{
		{0, 19, 0, 1, 7},
		{0, 19, 1, 1, 8},
		{0, 19, 5, 1, 12},
		{0, 19, 6, 1, 13},
		{0, 14, 0, 2, 3},
		{0, 14, 2, 2, 4},
		{0, 14, 4, 2, 5},
		{0, 9, 4, 4, 2},
		{0, 9, 0, 4, 1},
		{0, 0, 0, 8, 0},
		{1, 14, 3, 1, 6},
		{1, 5, 2, 2, 2},
		{1, 0, 0, 4, 0},
		{2, 14, 9, 3, 6},
		{2, 5, 6, 6, 2},
		{2, 0, 0, 12, 0},
	} {
		in := create(t, d, ids[c.gpu], c.profile, c.start, c.size)
		if in.ID != c.want {
			t.Errorf("GPU %d profile %d at %d: id %d, want %d", c.gpu, c.profile, c.start, in.ID, c.want)
		}
		first := in.Compute[0].UUID
		if err := d.DestroyInstance(t.Context(), ids[c.gpu], in.ID); err != nil {
			t.Fatal(err)
		}
		if again := create(t, d, ids[c.gpu], c.profile, c.start, c.size); again.Compute[0].UUID != first {
			t.Errorf("profile %d at %d: UUID %s became %s", c.profile, c.start, first, again.Compute[0].UUID)
		}
		if err := d.DestroyInstance(t.Context(), ids[c.gpu], in.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInstanceRules(t *testing.T) {
	type call struct {
		name string
		do   func(t *testing.T, d *gpusim.Driver, id gpu.UUID) error
		want error
	}
	at := func(profile, start, size uint32, compute ...gpu.NewCompute) func(*testing.T, *gpusim.Driver, gpu.UUID) error {
		return func(t *testing.T, d *gpusim.Driver, id gpu.UUID) error {
			_, err := d.CreateInstance(
				t.Context(), id,
				gpu.NewInstance{ProfileID: profile, Placement: gpu.Placement{Start: start, Size: size}, Compute: compute},
			)
			return err
		}
	}
	for _, c := range []struct {
		name, model string
		calls       []call
	}{
		{"an occupied placement", "A100-SXM4-40GB", []call{
			{"3g at 0", at(9, 0, 4), nil},
			{"1g at 3", at(19, 3, 1), gpu.ErrInsufficientResources},
			{"1g at 4", at(19, 4, 1), nil},
			{"3g at 4", at(9, 4, 4), gpu.ErrInsufficientResources},
		}},
		{"an illegal placement", "A100-SXM4-40GB", []call{
			{"2g at 1", at(14, 1, 2), gpu.ErrInvalid},
			{"2g of 3", at(14, 0, 3), gpu.ErrInvalid},
			{"no such profile", at(99, 0, 1), gpu.ErrNotSupported},
		}},
		{"one media extension", "A100-SXM4-40GB", []call{
			{"1g+me at 0", at(20, 0, 1), nil},
			{"a second", at(20, 1, 1), gpu.ErrInsufficientResources},
			{"a plain one", at(19, 1, 1), nil},
		}},
		{"all media engines", "RTX-PRO-6000-96GB", []call{
			{"1g+me.all at 0", at(65, 0, 3), nil},
			{"a plain one next to it", at(14, 3, 3), gpu.ErrInsufficientResources},
			{"one without engines next to it", at(67, 3, 3), nil},
		}},
		{"compute instances of a part", "A100-SXM4-40GB", []call{
			{"3g with 2c and 1c", at(9, 0, 4, gpu.NewCompute{Slices: 2}, gpu.NewCompute{Slices: 1}), nil},
			{"3g with 2c and 2c", at(9, 4, 4, gpu.NewCompute{Slices: 2}, gpu.NewCompute{Slices: 2}), gpu.ErrInsufficientResources},
			{"the failed creation left nothing", at(9, 4, 4), nil},
		}},
		{"a compute profile that is not offered", "A100-SXM4-40GB", []call{
			{"4g with 3c", at(5, 0, 4, gpu.NewCompute{Slices: 3}), gpu.ErrNotSupported},
			{"4g with two of 2c", at(5, 0, 4, gpu.NewCompute{Slices: 2}, gpu.NewCompute{Slices: 2}), nil},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, ids := port(t, node(t, withMIG, c.model))
			for _, k := range c.calls {
				if err := k.do(t, d, ids[0]); !errors.Is(err, k.want) {
					t.Fatalf("%s: %v, want %v", k.name, err, k.want)
				}
			}
		})
	}
}

func TestInstancesInUseAreKept(t *testing.T) {
	n := node(t, withMIG, "A100-SXM4-40GB")
	d, ids := port(t, n)
	in := create(t, d, ids[0], 9, 0, 4)
	c := open(t, n, gpusim.ContextSpec{PID: 4242, Device: string(in.Compute[0].UUID)})
	if err := d.DestroyInstance(t.Context(), ids[0], in.ID); !errors.Is(err, gpu.ErrInUse) {
		t.Fatalf("destroy while in use: %v", err)
	}
	s, err := d.Snapshot(t.Context(), ids[0])
	if err != nil || len(s.Instances) != 1 || len(s.Instances[0].Compute) != 1 {
		t.Fatalf("instance after a refused destroy: %+v, %v", s.Instances, err)
	}
	gi, ci, memory := in.ID, in.Compute[0].ID, uint64(300*gpusim.MiB)
	want := []gpu.Process{{PID: 4242, Kind: gpu.ComputeProcess, Memory: &memory, GI: &gi, CI: &ci}}
	if diff := cmp.Diff(want, s.Processes); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	if _, err := d.SetMIGMode(t.Context(), ids[0], false); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("mode off with an instance: %v", err)
	}
	c.Close()
	if err := d.DestroyInstance(t.Context(), ids[0], in.ID); err != nil {
		t.Errorf("destroy after the process ended: %v", err)
	}
}

func TestAmpereModeChangeNeedsReset(t *testing.T) {
	n := node(t, nil, "A100-SXM4-40GB")
	d, ids := port(t, n)
	monitor := n.Driver(77)
	if _, err := monitor.Memory(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	change, err := d.SetMIGMode(t.Context(), ids[0], true)
	if err != nil || change.Current || !change.Pending || !errors.Is(change.Activation, gpu.ErrInUse) {
		t.Fatalf("with a monitor: %+v, %v", change, err)
	}
	if _, err := d.CreateInstance(t.Context(), ids[0], gpu.NewInstance{ProfileID: 19, Placement: gpu.Placement{Size: 1}}); !errors.Is(
		err, gpu.ErrNotSupported,
	) {
		t.Errorf("create while pending: %v", err)
	}
	if err := n.ResetGPU(string(ids[0]), os.Getpid()); err == nil {
		t.Error("reset with a monitor succeeded")
	}
	_ = monitor.Close()
	if change, err = d.SetMIGMode(t.Context(), ids[0], true); err != nil || !change.Current {
		t.Fatalf("without the monitor: %+v, %v", change, err)
	}
	create(t, d, ids[0], 9, 0, 4)
	if _, err := d.SetMIGMode(t.Context(), ids[0], false); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("off with an instance: %v", err)
	}
}

func TestModeActiveAfterReset(t *testing.T) {
	n := node(t, func(c *gpusim.Config) { c.ResetUnavailable = true }, "A100-SXM4-40GB")
	d, ids := port(t, n)
	change, err := d.SetMIGMode(t.Context(), ids[0], true)
	if err != nil || change.Current || !errors.Is(change.Activation, gpu.ErrResetRequired) {
		t.Fatalf("%+v, %v", change, err)
	}
	if err := n.ResetGPU("0", os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if s, err := d.Snapshot(t.Context(), ids[0]); err != nil || !s.MIG.Current {
		t.Errorf("after the reset: %+v, %v", s.MIG, err)
	}
}

func TestStateAfterBoot(t *testing.T) {
	for _, c := range []struct {
		model string
		mode  bool
	}{{"A100-SXM4-40GB", true}, {"H100-SXM5-80GB", false}} {
		for _, how := range []string{"reboot", "driver reload"} {
			t.Run(c.model+" "+how, func(t *testing.T) {
				n := node(t, nil, c.model)
				d, ids := port(t, n)
				if change, err := d.SetMIGMode(t.Context(), ids[0], true); err != nil || !change.Current {
					t.Fatalf("%+v, %v", change, err)
				}
				if err := d.SetComputeMode(t.Context(), ids[0], gpu.ComputeExclusiveProcess); err != nil {
					t.Fatal(err)
				}
				create(t, d, ids[0], 9, 0, 4)
				before := n.View(0)
				if how == "reboot" {
					n.Reboot()
				} else {
					if err := n.ReloadDriver(false); err == nil {
						t.Fatal("reload while a client uses the driver succeeded")
					}
					_ = d.Close()
					if err := n.ReloadDriver(false); err != nil {
						t.Fatal(err)
					}
					d, _ = port(t, n)
				}
				s, err := d.Snapshot(t.Context(), ids[0])
				if err != nil {
					t.Fatal(err)
				}
				if len(s.Instances) > 0 || s.MIG.Current != c.mode || s.MIG.Pending != c.mode || s.ComputeMode != gpu.ComputeDefault {
					t.Errorf("instances %v, mode %+v, compute mode %s; want none, %v, default", s.Instances, s.MIG, s.ComputeMode, c.mode)
				}
				after := n.View(0)
				if (after.BootID != before.BootID) != (how == "reboot") || after.Loads == before.Loads {
					t.Errorf("boot id %s to %s, loads %d to %d", before.BootID, after.BootID, before.Loads, after.Loads)
				}
			})
		}
	}
}

func TestProfilesWithoutMIGModeDependOnTheDriver(t *testing.T) {
	for _, c := range []struct {
		version  string
		can      bool
		profiles int // while MIG mode is on
	}{
		{"470.256.02", false, 6}, {"535.183.01", false, 7}, {"550.163.01", false, 7}, {"580.95.05", true, 7}, {"615.10", true, 7},
	} {
		n := node(t, func(cfg *gpusim.Config) { cfg.DriverVersion = c.version }, "A100-SXM4-40GB")
		d, ids := port(t, n)
		if _, err := d.Profiles(t.Context(), ids[0]); (err == nil) != c.can {
			t.Errorf("%s with MIG mode off: %v", c.version, err)
		}
		if _, err := d.SetMIGMode(t.Context(), ids[0], true); err != nil {
			t.Fatal(err)
		}
		if p, err := d.Profiles(t.Context(), ids[0]); err != nil || len(p.GI) != c.profiles {
			t.Errorf("%s with MIG mode on has %d profiles, want %d: %v", c.version, len(p.GI), c.profiles, err)
		}
	}
}

func TestDriverStates(t *testing.T) {
	for state, want := range map[gpusim.DriverState]error{
		gpusim.DriverAbsent: gpu.ErrNotLoaded, gpusim.DriverMismatch: gpu.ErrVersionMismatch, gpusim.DriverReady: nil,
	} {
		n := node(t, func(c *gpusim.Config) { c.State = state }, "A30-24GB")
		if _, err := n.Driver(1).Node(t.Context()); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", state, err, want)
		}
	}
	if info, err := node(t, nil).Driver(1).Node(t.Context()); err != nil || len(info.GPUs) != 0 {
		t.Errorf("no GPUs: %+v, %v", info, err)
	}
}

func TestALostGPUKeepsItsPlace(t *testing.T) {
	n := node(t, nil, "A30-24GB", "A30-24GB")
	d, ids := port(t, n)
	c := open(t, n, gpusim.ContextSpec{PID: 9, Device: "0"})
	n.Lose(0)
	info, err := d.Node(t.Context())
	if err != nil || len(info.GPUs) != 2 || info.GPUs[0].Error == "" || info.GPUs[1].Error != "" {
		t.Fatalf("%+v, %v", info.GPUs, err)
	}
	if _, err := d.Snapshot(t.Context(), ids[0]); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("read of the lost GPU: %v", err)
	}
	if _, err := d.Snapshot(t.Context(), ids[1]); err != nil {
		t.Errorf("read of the other: %v", err)
	}
	if err := c.Alloc(1); err == nil {
		t.Error("its context still works")
	}
	if err := n.ResetGPU("0", 1); err == nil {
		t.Error("a reset succeeded on a lost GPU")
	}
	n.Reboot()
	if _, err := d.Snapshot(t.Context(), ids[0]); err != nil {
		t.Errorf("after a reboot: %v", err)
	}
}

func TestCancelledCallIsATimeout(t *testing.T) {
	n := node(t, nil, "A30-24GB")
	d, ids := port(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Memory(ctx, ids[0]); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("%v", err)
	}
}
