package mig_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// countingDriver is a virtual GPU that counts the calls that change something.
type countingDriver struct {
	*gpusim.Driver
	node                                *gpusim.Node
	id                                  gpu.UUID
	created, destroyed, modes, failures int
}

func (c *countingDriver) count(n *int, err error) {
	*n++
	if err != nil {
		c.failures++
	}
}

func (c *countingDriver) CreateInstance(ctx context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error) {
	in, err := c.Driver.CreateInstance(ctx, id, want)
	c.count(&c.created, err)
	return in, err
}

func (c *countingDriver) DestroyInstance(ctx context.Context, id gpu.UUID, gi uint32) error {
	err := c.Driver.DestroyInstance(ctx, id, gi)
	c.count(&c.destroyed, err)
	return err
}

func (c *countingDriver) SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (gpu.ModeChange, error) {
	m, err := c.Driver.SetMIGMode(ctx, id, on)
	c.count(&c.modes, err)
	return m, err
}

// virtual creates a virtual GPU with instances; "3g.20gb@4!" has a CUDA context.
func virtual(t *testing.T, model string, on bool, have ...string) *countingDriver {
	t.Helper()
	m, err := nodefile.Model(model)
	if err != nil {
		t.Fatal(err)
	}
	p := m.GPUProfiles()
	var present []mig.Present
	for _, item := range have {
		if present, err = mig.ParsePresent(p, present, item); err != nil {
			t.Fatal(err)
		}
	}
	g := gpusim.GPUConfig{Model: m, MIG: on}
	for _, b := range present {
		g.Layout = append(g.Layout, gpu.NewInstance{ProfileID: b.ProfileID, Placement: b.Placement})
	}
	n, err := gpusim.New(gpusim.Config{
		DriverVersion: "580.95.05", CUDAVersion: 13000, ContextMemory: 300 << 20, GPUs: []gpusim.GPUConfig{g},
	}, engine.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	c := &countingDriver{Driver: n.Driver(1), node: n}
	info, err := c.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.id = info.GPUs[0].UUID
	for i, in := range c.snapshot(t).Instances {
		if !present[i].InUse {
			continue
		}
		if _, err := n.OpenContext(gpusim.ContextSpec{PID: 4711, Device: string(in.Compute[0].UUID)}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *countingDriver) snapshot(t *testing.T) gpu.Snapshot {
	t.Helper()
	s, err := c.Snapshot(t.Context(), c.id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// applyLayout plans with the observed GPU and carries the plan out.
func (c *countingDriver) applyLayout(t *testing.T, want ...string) error {
	t.Helper()
	p, err := c.Profiles(t.Context(), c.id)
	if err != nil {
		t.Fatal(err)
	}
	s := c.snapshot(t)
	d := mig.Device{MIG: s.MIG, Profiles: p}
	for _, in := range s.Instances {
		b := mig.Present{Instance: in}
		for _, x := range s.Processes {
			if x.GI != nil && *x.GI == in.ID {
				b.InUse, b.InUseBy = true, append(b.InUseBy, step.ProcessOf(x.PID, ""))
			}
		}
		d.Present = append(d.Present, b)
	}
	r, err := mig.PlanDevice(d, mig.Target{On: true, Requests: mig.Requests(want...)}, mig.Options{AllowReset: true})
	if err != nil {
		return err
	}
	h := &mig.Handler{Driver: c}
	for _, step := range r.Steps(c.id) {
		if err := h.Do(t.Context(), step); err != nil {
			t.Fatalf("%s: %v", step.Text, err)
		}
	}
	if got := mig.Record(p, c.snapshot(t).Instances); !mig.SameLayout(got, r.After()) {
		t.Fatalf("observed %v, planned %v", got, r.After())
	}
	return nil
}

func (c *countingDriver) layout(t *testing.T) string {
	t.Helper()
	p, err := c.Profiles(t.Context(), c.id)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, x := range mig.Record(p, c.snapshot(t).Instances) {
		out = append(out, fmt.Sprintf("%s@%d", x.Name, x.Placement.Start))
	}
	return strings.Join(out, " ")
}

// TestBaseline is the table of docs/mig.md: the changes of layout that tools do badly that rebuild a GPU, on the virtual
// node. It counts the calls that reach the driver.
func TestBaseline(t *testing.T) {
	for _, tc := range []struct {
		name               string
		model              string // a100-40 when empty
		off                bool   // MIG mode is off
		have, want         string // between spaces
		created, destroyed int
		modes              int
		after              string
		refused, nearest   string
	}{
		{name: "one 3g present, want 3g + 1g", have: "3g.20gb@4", want: "3g.20gb 1g.5gb", created: 1, after: "1g.5gb@0 3g.20gb@4"},
		{
			name: "a busy 3g and three idle 1g, one more 1g", have: "1g.5gb@0 1g.5gb@1 1g.5gb@2 3g.20gb@4!", want: "3g.20gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb",
			created: 1, after: "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 3g.20gb@4",
		},
		{
			name: "4g + 3g + 1g over a good layout", have: "2g.10gb@0 1g.5gb@2 3g.20gb@4", want: "4g.20gb 3g.20gb 1g.5gb",
			refused: "they need 9 memory slices, this GPU has 8", nearest: "4g.20gb 3g.20gb", after: "2g.10gb@0 1g.5gb@2 3g.20gb@4",
		},
		{
			name: "four 2g", have: "3g.20gb@0 3g.20gb@4", want: "2g.10gb 2g.10gb 2g.10gb 2g.10gb",
			refused: "this GPU supports at most 3 of 2g.10gb, 4 are requested", nearest: "2g.10gb 2g.10gb 2g.10gb", after: "3g.20gb@0 3g.20gb@4",
		},
		{
			name: "the only free placements are in use", have: "1g.5gb@1! 1g.5gb@5!", want: "3g.20gb 1g.5gb 1g.5gb",
			refused: "1g.5gb at 5 (pid 4711) is in use and would have to be destroyed", nearest: "1g.5gb 1g.5gb", after: "1g.5gb@1 1g.5gb@5",
		},
		{name: "already as desired", have: "3g.20gb@4 3g.20gb@0!", want: "3g.20gb 3g.20gb", after: "3g.20gb@0 3g.20gb@4"},
		{name: "only the mode is missing", model: "h100-80", off: true, modes: 1},
		{name: "seven 1g from empty", want: "1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb", created: 7, after: "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6"},
		{name: "the order in which the driver alone would fail", want: "1g.5gb 1g.5gb 2g.10gb 3g.20gb", created: 4, after: "2g.10gb@0 1g.5gb@2 1g.5gb@3 3g.20gb@4"},
		{name: "mode and layout together", off: true, want: "7g.40gb", modes: 1, created: 1, after: "7g.40gb@0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			model := tc.model
			if model == "" {
				model = "a100-40"
			}
			c := virtual(t, model, !tc.off, strings.Fields(tc.have)...)
			err := c.applyLayout(t, strings.Fields(tc.want)...)
			if tc.refused != "" {
				not, ok := errors.AsType[*mig.Infeasible](err)
				if !ok || not.Reason != tc.refused {
					t.Fatalf("got %v, want it refused: %s", err, tc.refused)
				}
				var nearest []string
				for _, w := range not.Nearest {
					nearest = append(nearest, w.Name)
				}
				if got := strings.Join(nearest, " "); got != tc.nearest {
					t.Errorf("the nearest layout is %s, want %s", got, tc.nearest)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if c.created != tc.created || c.destroyed != tc.destroyed || c.modes != tc.modes || c.failures != 0 {
				t.Errorf(
					"%d created, %d destroyed, %d modes, %d failures; want %d, %d, %d and none", c.created, c.destroyed, c.modes,
					c.failures, tc.created, tc.destroyed, tc.modes,
				)
			}
			if got := c.layout(t); got != tc.after {
				t.Errorf("the layout is %s, want %s", got, tc.after)
			}
		})
	}
}
