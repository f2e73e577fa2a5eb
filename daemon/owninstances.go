package daemon

import (
	"encoding/json"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// ours tells whether an instance is ours: we made it, the layout in force has it, or an administrator said so.
func (d *State) ours(id gpu.UUID, in *gpu.Instance) bool {
	a := d.Kept().Achieved[id]
	return isOurs(&a, in)
}

func isOurs(a *store.Achieved, in *gpu.Instance) bool {
	return slices.ContainsFunc(a.Layout, func(b gpu.Instance) bool { return b.Placement == in.Placement && b.ProfileID == in.ProfileID })
}

// markOf is what is kept of the instance of ours at a placement; nil when nothing is.
func markOf(a *store.Achieved, at gpu.Placement) *store.Mark {
	if i := slices.IndexFunc(a.Marks, func(m store.Mark) bool { return m.Placement == at }); i >= 0 {
		return &a.Marks[i]
	}
	return nil
}

// number is the generation of the instance of ours at a placement; 0 when it has none.
func instanceNumber(a *store.Achieved, at gpu.Placement) uint64 {
	if m := markOf(a, at); m != nil && !m.Gone {
		return m.Generation
	}
	return 0
}

// ownLayout gives, of what is on a GPU, the instances that are ours after these steps, with their marks. Those of others
// stay others', however often a layout is reached beside them. e is what the GPU is wanted to be, was what it had.
func ownLayout(s *store.State, e *api.GPUSpec, g *observe.GPU, was *store.Achieved, now store.Epoch, steps []step.Step) (layout []gpu.Instance, marks []store.Mark) {
	same := was.Epoch.Boot == now.Boot && was.Epoch.Driver == now.Driver
	touched, adopted := madeBy(steps, g.Identity.UUID)
	kept := wantedOf(e, g, was)
	for _, in := range g.Instances {
		made, changed := touched[in.Placement]
		if !(isOurs(was, &in) && (same || made) || made || slices.Contains(kept, in.Placement)) {
			continue
		}
		m := store.Mark{Placement: in.Placement}
		if old := markOf(was, in.Placement); old != nil {
			m = *old
		}
		if m.Gone || changed || !same || m.Generation == 0 {
			s.Instances++
			m.Generation, m.Gone = s.Instances, false
		}
		m.Adopted = m.Adopted || adopted[in.Placement]
		in.Memory = gpu.Memory{} // What makes it come back is what and where it is, not what it used.
		layout, marks = append(layout, in), append(marks, m)
	}
	return layout, marks
}

// madeBy gives the placements of a GPU at which steps make or destroy instances: true where one is made. adopted are
// those that were completed because somebody said that they are ours.
func madeBy(steps []step.Step, id gpu.UUID) (touched, adopted map[gpu.Placement]bool) {
	touched, adopted = map[gpu.Placement]bool{}, map[gpu.Placement]bool{}
	for i := range steps {
		var args mig.InstanceArgs
		if s := &steps[i]; s.GPU != string(id) || s.Kind != mig.KindCreate && s.Kind != mig.KindDestroy || json.Unmarshal(s.Args, &args) != nil {
			continue
		}
		touched[args.Placement] = touched[args.Placement] || steps[i].Kind == mig.KindCreate
		adopted[args.Placement] = adopted[args.Placement] || steps[i].Reason == adoptReason
	}
	return touched, adopted
}

// stepsUnderWay are those of the change under way.
func stepsUnderWay(st *store.State) []step.Step {
	var r engine.Record
	if len(st.Change) == 0 || json.Unmarshal(st.Change, &r) != nil {
		return nil
	}
	return r.Steps
}

// beingMade tells whether an instance is one that these steps make: it is ours, and recorded so when the change has ended.
func beingMade(steps []step.Step, id gpu.UUID, at gpu.Placement) bool {
	made, _ := madeBy(steps, id)
	return made[at]
}

// wantedOf gives the placements of those instances that the layout has, whoever made them.
func wantedOf(e *api.GPUSpec, g *observe.GPU, was *store.Achieved) []gpu.Placement {
	if e == nil || e.MIG == nil || len(e.MIG.Layout) == 0 || g.Profiles == nil {
		return nil
	}
	present := make([]mig.Present, len(g.Instances))
	for i := range g.Instances {
		present[i] = mig.Present{Instance: g.Instances[i], Foreign: !isOurs(was, &g.Instances[i])}
	}
	r, err := mig.Plan(*g.Profiles, present, mig.Named(e.MIG.Layout...), mig.Options{})
	if err != nil {
		return nil // It is not as wanted: then only what we made is ours.
	}
	var out []gpu.Placement
	for _, p := range slices.Concat(r.Keep, r.Complete) {
		out = append(out, p.Placement)
	}
	return out
}

// adoptReason is why an instance is completed that an administrator said is ours.
const adoptReason = "it is adopted, and lacks compute instances"

// stale tells whether a lease's instance is gone. One that was made in its place since has the same UUIDs and device
// numbers, and is none of its business.
func (d *State) stale(l *lease.Lease) bool { return staleIn(d.Kept(), l) }

func staleIn(s *store.State, l *lease.Lease) bool {
	if l.Place.Instance == nil || l.Place.Generation == 0 || len(l.Place.GPUs) != 1 {
		return false
	}
	a := s.Achieved[l.Place.GPUs[0]]
	return instanceNumber(&a, *l.Place.Instance) != l.Place.Generation
}
