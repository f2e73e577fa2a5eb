package mig

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// After tells what steps of one GPU, each of which was read back, lead to: its mode and its instances, without their ids.
// It is for a GPU that does not answer any more when all of them are done. Steps of other packages are left out.
func After(on bool, was []gpu.Instance, steps []step.Step) (mode bool, now []gpu.Instance, err error) {
	now = slices.Clone(was)
	for i := range steps {
		s := &steps[i]
		switch s.Kind {
		case KindMode:
			var a ModeArgs
			if err := decode(s.Args, &a); err != nil {
				return on, nil, err
			}
			if on = a.On; !on {
				now = nil
			}
		case KindCreate, KindDestroy:
			var a InstanceArgs
			if err := decode(s.Args, &a); err != nil {
				return on, nil, err
			}
			now = slices.DeleteFunc(now, func(in gpu.Instance) bool { return in.Placement == a.Placement })
			if s.Kind == KindCreate {
				now = append(now, a.instance())
			}
		}
	}
	return on, now, nil
}

// instance is what these arguments ask for. Compute instances whose place was left to the driver lie one after the other.
func (a InstanceArgs) instance() gpu.Instance {
	in := gpu.Instance{ProfileID: a.ProfileID, Placement: a.Placement}
	compute := a.Compute
	if len(compute) == 0 {
		compute = []gpu.NewCompute{{Slices: a.Slices}}
	}
	next := uint32(0)
	for i, c := range compute {
		at := gpu.Placement{Start: next, Size: c.Slices}
		if c.Placement != nil {
			at = *c.Placement
		}
		next = at.Start + at.Size
		in.Compute = append(in.Compute, gpu.ComputeInstance{ID: uint32(i), Placement: at})
	}
	return in
}
