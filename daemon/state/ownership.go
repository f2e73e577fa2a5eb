package state

import (
	"encoding/json"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// RecordOwnership records the instances that these steps imported or removed on a GPU that stays held.
func RecordOwnership(s *store.State, id gpu.UUID, steps []step.Step) {
	a, ok := s.Achieved[id]
	for i := range steps {
		var args mig.InstanceArgs
		if steps[i].GPU != string(id) || json.Unmarshal(steps[i].Args, &args) != nil {
			continue
		}
		switch steps[i].Kind {
		case mig.KindDestroy:
			forgetUnconfirmed(s, id, args.Placement) // Also on a GPU that never was as a spec says.
			a.Layout = slices.DeleteFunc(slices.Clone(a.Layout), func(in gpu.Instance) bool { return in.Placement == args.Placement })
			a.Instances = slices.DeleteFunc(
				slices.Clone(a.Instances), func(m store.InstanceRecord) bool { return m.Placement == args.Placement },
			)
		case mig.KindCreate:
			AddImported(s, &a, gpu.Instance{ProfileID: args.ProfileID, Placement: args.Placement})
		}
	}
	if ok {
		s.Achieved[id] = a
	}
}

// RecordLeft records which GPUs gpushare no longer manages under a spec. What it created there stays managed until it is removed:
// an earlier spec, or unmanage, finds it. A GPU in mode external is handed over with all that is on it.
func RecordLeft(s *store.State, want *Desired) {
	for id := range s.Achieved {
		a := s.Achieved[id]
		if !want.Manages(id) && (len(a.Layout) == 0 || want.Mode(id) == api.ModeExternal) {
			delete(s.Achieved, id)
		}
	}
	for id := range s.Unconfirmed {
		if want.Mode(id) == api.ModeExternal {
			delete(s.Unconfirmed, id)
		}
	}
}

// KeepPresent removes from the record of a GPU that gpushare does not manage what is there no longer: what another program
// creates in its place is not gpushare's. It reports whether that changed the record.
func KeepPresent(s *store.State, id gpu.UUID, g *observe.GPU, ended bool) bool {
	a := s.Achieved[id]
	left := slices.DeleteFunc(slices.Clone(a.Layout), func(in gpu.Instance) bool {
		return ended ||
			!slices.ContainsFunc(
				g.Instances, func(now gpu.Instance) bool { return now.Placement == in.Placement && now.ProfileID == in.ProfileID },
			)
	})
	switch len(left) {
	case len(a.Layout):
		return false
	case 0:
		delete(s.Achieved, id)
		return true
	}
	a.Layout = left
	a.Instances = slices.DeleteFunc(slices.Clone(a.Instances), func(m store.InstanceRecord) bool {
		return !slices.ContainsFunc(left, func(in gpu.Instance) bool { return in.Placement == m.Placement })
	})
	s.Achieved[id] = a
	return true
}

// AddImported records an imported instance.
func AddImported(s *store.State, a *store.Achieved, in gpu.Instance) {
	in.Memory = gpu.Memory{}
	s.LastInstanceGeneration++
	a.Layout = append(slices.Clone(a.Layout), in)
	a.Instances = append(
		slices.DeleteFunc(slices.Clone(a.Instances), func(m store.InstanceRecord) bool { return m.Placement == in.Placement }),
		store.InstanceRecord{Placement: in.Placement, Generation: s.LastInstanceGeneration, Imported: true},
	)
}
