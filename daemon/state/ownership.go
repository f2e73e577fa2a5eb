package state

import (
	"encoding/json"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// RecordOwnership records the instances that these steps imported or removed on a GPU that stays held.
func RecordOwnership(s *store.State, id gpu.UUID, steps []step.Step) {
	a, ok := s.Achieved[id]
	if !ok {
		return
	}
	for i := range steps {
		var args mig.InstanceArgs
		if steps[i].GPU != string(id) || json.Unmarshal(steps[i].Args, &args) != nil {
			continue
		}
		switch steps[i].Kind {
		case mig.KindDestroy:
			a.Layout = slices.DeleteFunc(slices.Clone(a.Layout), func(in gpu.Instance) bool { return in.Placement == args.Placement })
			a.Instances = slices.DeleteFunc(slices.Clone(a.Instances), func(m store.InstanceRecord) bool { return m.Placement == args.Placement })
		case mig.KindCreate:
			AddImported(s, &a, gpu.Instance{ProfileID: args.ProfileID, Placement: args.Placement})
		}
	}
	s.Achieved[id] = a
}

// AddImported records an imported instance.
func AddImported(s *store.State, a *store.Achieved, in gpu.Instance) {
	in.Memory = gpu.Memory{}
	s.LastInstanceGeneration++
	a.Layout = append(slices.Clone(a.Layout), in)
	a.Instances = append(slices.DeleteFunc(slices.Clone(a.Instances), func(m store.InstanceRecord) bool { return m.Placement == in.Placement }),
		store.InstanceRecord{Placement: in.Placement, Generation: s.LastInstanceGeneration, Imported: true})
}
