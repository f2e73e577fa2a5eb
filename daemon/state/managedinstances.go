package state

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

// ManagesInstance reports whether gpushare manages an instance: it created it, or it is in the layout, or it was imported.
func (x *State) ManagesInstance(id gpu.UUID, in *gpu.Instance) bool {
	var node *observe.Node
	if x.Observed != nil {
		node = x.Observed()
	}
	a, _ := Owned(x.Stored(), id, node)
	return IsManaged(&a, in)
}

// IsManaged reports whether an instance is recorded as managed.
func IsManaged(a *store.Achieved, in *gpu.Instance) bool {
	return slices.ContainsFunc(a.Layout, func(b gpu.Instance) bool { return b.Placement == in.Placement && b.ProfileID == in.ProfileID })
}

// InstanceRecordOf is the record of the managed instance at a placement; nil without one.
func InstanceRecordOf(a *store.Achieved, at gpu.Placement) *store.InstanceRecord {
	if i := slices.IndexFunc(a.Instances, func(m store.InstanceRecord) bool { return m.Placement == at }); i >= 0 {
		return &a.Instances[i]
	}
	return nil
}

// InstanceGeneration is the generation of the managed instance at a placement; 0 without one.
func InstanceGeneration(a *store.Achieved, at gpu.Placement) uint64 {
	if m := InstanceRecordOf(a, at); m != nil && !m.Missing {
		return m.Generation
	}
	return 0
}

// ManagedLayout returns the instances of a GPU that are managed after these steps, with their records. Foreign instances stay
// foreign, also when the layout is reached next to them. e is the desired state of the GPU, was the achieved one.
func ManagedLayout(
	s *store.State, e *api.GPUSpec, g *observe.GPU, was *store.Achieved, now store.Epoch, steps []step.Step,
) (layout []gpu.Instance, records []store.InstanceRecord) {
	same := was.Epoch.Boot == now.Boot && was.Epoch.Driver == now.Driver
	changedAt, imported := CreatedBy(steps, g.Identity.UUID)
	unconfirmed := s.Unconfirmed[g.Identity.UUID]
	if !sameLoad(unconfirmed.Epoch, now) {
		unconfirmed.Created = nil
	}
	kept := LayoutPlacements(e, g, was)
	for _, in := range g.Instances {
		created, changed := changedAt[in.Placement]
		created = created || slices.ContainsFunc(unconfirmed.Created, func(c store.CreatedInstance) bool { return c.Is(in) })
		if !(IsManaged(was, &in) && (same || created) || created || slices.Contains(kept, in.Placement)) {
			continue
		}
		m := store.InstanceRecord{Placement: in.Placement}
		if old := InstanceRecordOf(was, in.Placement); old != nil {
			m = *old
		}
		if m.Missing || changed || !same || m.Generation == 0 {
			s.LastInstanceGeneration++
			m.Generation, m.Missing = s.LastInstanceGeneration, false
		}
		m.Imported = m.Imported || imported[in.Placement]
		in.Memory = gpu.Memory{} // A restore needs profile and placement, not the memory use.
		layout, records = append(layout, in), append(records, m)
	}
	return layout, records
}

// CreatedBy returns the placements of a GPU at which steps create (true) or destroy instances. imported are those of instances
// that were completed for an import.
func CreatedBy(steps []step.Step, id gpu.UUID) (changedAt, imported map[gpu.Placement]bool) {
	changedAt, imported = map[gpu.Placement]bool{}, map[gpu.Placement]bool{}
	for i := range steps {
		var args mig.InstanceArgs
		if s := &steps[i]; s.GPU != string(id) || s.Kind != mig.KindCreate && s.Kind != mig.KindDestroy ||
			json.Unmarshal(s.Args, &args) != nil {
			continue
		}
		changedAt[args.Placement] = changedAt[args.Placement] || steps[i].Kind == mig.KindCreate
		imported[args.Placement] = imported[args.Placement] || args.Imported
	}
	return changedAt, imported
}

// OpenSteps are the steps of the open change.
func OpenSteps(st *store.State) []step.Step {
	var r engine.Record
	if len(st.Change) == 0 || json.Unmarshal(st.Change, &r) != nil {
		return nil
	}
	return r.Steps
}

// IsPending reports whether these steps create an instance: it is managed, and recorded when the change has ended.
func IsPending(steps []step.Step, id gpu.UUID, at gpu.Placement) bool {
	created, _ := CreatedBy(steps, id)
	return created[at]
}

// LayoutPlacements returns the placements of the instances that the layout contains, managed and foreign ones. There are none
// if the layout is not possible now: then only created instances are managed.
func LayoutPlacements(e *api.GPUSpec, g *observe.GPU, was *store.Achieved) []gpu.Placement {
	return layoutPlacements(e, g, was, mig.Options{})
}

// NeededPlacements is LayoutPlacements once the foreign instances in the way of the layout are removed.
func NeededPlacements(e *api.GPUSpec, g *observe.GPU, was *store.Achieved) []gpu.Placement {
	return layoutPlacements(e, g, was, mig.Options{TakeForeign: true})
}

func layoutPlacements(e *api.GPUSpec, g *observe.GPU, was *store.Achieved, o mig.Options) []gpu.Placement {
	if e == nil || e.MIG == nil || len(e.MIG.Layout) == 0 || g.Profiles == nil {
		return nil
	}
	present := make([]mig.Present, len(g.Instances))
	for i := range g.Instances {
		present[i] = mig.Present{Instance: g.Instances[i], Foreign: !IsManaged(was, &g.Instances[i])}
	}
	r, err := mig.Plan(*g.Profiles, present, LayoutRequests(e.MIG.Layout), o)
	if err != nil {
		return nil
	}
	var out []gpu.Placement
	for _, p := range slices.Concat(r.Keep, r.Complete) {
		out = append(out, p.Placement)
	}
	return out
}

// Stale reports whether the instance of a lease was removed. An instance that was created in its place has the same UUIDs and
// device numbers, and the lease has no access to it.
func (x *State) Stale(l *lease.Lease) bool { return StaleIn(x.Stored(), l) }

// StaleIn is Stale for a stored state.
func StaleIn(s *store.State, l *lease.Lease) bool {
	if l.Place.Instance == nil || l.Place.Generation == 0 || len(l.Place.GPUs) != 1 {
		return false
	}
	a := s.Achieved[l.Place.GPUs[0]]
	return InstanceGeneration(&a, *l.Place.Instance) != l.Place.Generation
}
