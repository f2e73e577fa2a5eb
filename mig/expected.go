package mig

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// After returns the MIG mode and the instances, without their ids, that steps of one GPU lead to. It is used for a GPU that
// became unresponsive after all steps were done and read back. Steps of other packages are ignored.
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

// instance is the instance of these arguments. Compute instances without a placement follow one another.
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
