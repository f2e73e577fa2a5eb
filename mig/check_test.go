package mig

import (
	"context"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/gpu"
)

// otherwise is a driver that creates one compute instance of one slice, whatever is requested.
type otherwise struct{ *fake }

func (o otherwise) CreateInstance(ctx context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error) {
	want.Compute = []gpu.NewCompute{{Slices: 1}}
	return o.fake.CreateInstance(ctx, id, want)
}

// What the driver created instead of an instance is destroyed: no undo would find it.
func TestInstanceCreatedInsteadIsDestroyed(t *testing.T) {
	f := newFake(a100(), nil)
	r, err := Plan(f.p, nil, Requests("3g.20gb"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = (&Handler{Driver: otherwise{f}}).Do(t.Context(), r.Steps("GPU-1")[0])
	if err == nil || !strings.Contains(err.Error(), "instead, which was destroyed") || len(f.instances) != 0 {
		t.Errorf("%v, and the GPU has %+v", err, f.instances)
	}
}

// A driver that does not report placements: the sizes are those of the profiles, and an instance is destroyed only if its
// compute instances could be created again where they were.
func TestCheckUndo(t *testing.T) {
	p := a100()
	for _, c := range []struct {
		name    string
		compute []gpu.ComputeInstance
		err     string
	}{
		{"one", []gpu.ComputeInstance{{Slices: 3}}, ""},
		{"one of an unknown size", []gpu.ComputeInstance{{}}, "cannot destroy 3g.20gb at 0: it could not be created again"},
		{"two, known by their UUIDs", []gpu.ComputeInstance{{Slices: 1, UUID: "MIG-1"}, {Slices: 2, UUID: "MIG-2"}}, ""},
		{"two without UUIDs", []gpu.ComputeInstance{{Slices: 1}, {Slices: 2}}, "it could not be created again"},
		{"two with placements", []gpu.ComputeInstance{{Placement: gpu.Placement{Size: 1}}, {Placement: gpu.Placement{Start: 2, Size: 1}}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			present := presentFrom(t, p, "3g.20gb@0")
			present[0].Compute = c.compute
			r, err := Plan(p, present, Requests("7g.40gb"), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Check(gpu.MIGState{}, Options{}); c.err == "" && err != nil ||
				c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%v, want %q", err, c.err)
			}
			// With Force it is destroyed, by a step that has no undo and says why. Its undo succeeds only where it is still there.
			if err := r.Check(gpu.MIGState{}, Options{Force: true}); err != nil {
				t.Errorf("with Force: %v", err)
			}
			s := r.Steps("GPU-1")[0]
			if one := c.err != ""; s.Kind != KindDestroy || one != (s.Irreversible != "") || one != (len(s.Undo) == 0) {
				t.Errorf("the step is %+v", s)
			}
			f := newFake(p, nil)
			f.instances = []gpu.Instance{present[0].Instance}
			h := &Handler{Driver: f}
			if err := h.Undo(t.Context(), s); err != nil || len(NotUndone(read(f), r.Steps("GPU-1")[:1])) != 0 {
				t.Errorf("the undo of what was not done: %v", err)
			}
			if c.err == "" {
				return
			}
			f.instances = nil
			if err := h.Undo(
				t.Context(), s,
			); err == nil || !strings.Contains(err.Error(), "was destroyed, and it could not be created again") ||
				len(f.instances) != 0 {
				t.Errorf("the undo of what cannot be undone: %v, %+v", err, f.instances)
			}
			if left := NotUndone(read(f), r.Steps("GPU-1")[:1]); len(left) != 1 || !strings.HasSuffix(left[0], " is missing") {
				t.Errorf("as it is read back: %q", left)
			}
		})
	}
}

// read is the GPU of a fake as it is now.
func read(f *fake) gpu.Snapshot { return gpu.Snapshot{MIG: f.mig, Instances: f.instances} }
