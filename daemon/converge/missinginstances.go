package converge

import (
	"maps"
	"slices"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// recordMissing records the managed instances that disappeared without a change: an instance that appears in their place later
// is another one, although it has the same UUIDs. On a GPU with instances on demand it is foreign.
func (cv *Converger) recordMissing(node *observe.Node) {
	want := cv.State.Desired()
	if node.DriverErr != nil || cv.State.LastChangeSeq() > node.Seq || cv.State.Changing() != nil {
		return
	}
	dry := *cv.State.Stored()
	dry.Achieved, dry.Unconfirmed = maps.Clone(dry.Achieved), maps.Clone(dry.Unconfirmed)
	if !missing(&dry, want, node, false) {
		return
	}
	err := cv.State.Store.Update(func(s *store.State) error {
		if cv.State.LastChangeSeq() <= node.Seq { // Otherwise a change ended after this observation.
			missing(s, want, node, true)
		}
		return nil
	})
	if err != nil {
		cv.Log.Warn("cannot record a missing instance", "error", err)
	}
}

// missing updates what is recorded of instances, and reports whether that differs. Without change it only reports.
func missing(s *store.State, want *state.Desired, node *observe.Node, change bool) (any bool) {
	for id := range s.Unconfirmed {
		if g, ok := node.GPU(id); ok && g.Err == nil && !want.Manages(id) {
			any = state.ForgetAbsent(s, id, g) || any
		}
	}
	for id, a := range s.Achieved {
		g, ok := node.GPU(id)
		ended := state.EpochEnded(a.Epoch, node)
		if !want.Manages(id) && (ended || ok && g.Err == nil) {
			any = state.KeepPresent(s, id, g, ended) || any
			continue
		}
		if !ok || g.Err != nil || ended || !want.Enforcing() {
			continue // A boot removes all of them, and a change creates them again.
		}
		changed := missingOn(s, &a, g, want.Dynamic(id))
		any = any || changed
		if changed && change {
			s.Achieved[id] = a
		}
	}
	return any
}

// missingOn is missing for one GPU. It changes a copy of the lists.
func missingOn(s *store.State, a *store.Achieved, g *observe.GPU, dynamic bool) (changed bool) {
	a.Layout, a.Instances = slices.Clone(a.Layout), slices.Clone(a.Instances)
	for i := len(a.Layout) - 1; i >= 0; i-- {
		present := slices.ContainsFunc(g.Instances, func(in gpu.Instance) bool {
			return in.Placement == a.Layout[i].Placement && in.ProfileID == a.Layout[i].ProfileID
		})
		m := state.InstanceRecordOf(a, a.Layout[i].Placement)
		switch {
		case !present && dynamic:
			at := a.Layout[i].Placement
			a.Layout = slices.Delete(a.Layout, i, i+1)
			a.Instances = slices.DeleteFunc(a.Instances, func(m store.InstanceRecord) bool { return m.Placement == at })
		case m != nil && !present && !m.Missing:
			m.Missing = true
		case m != nil && present && m.Missing:
			s.LastInstanceGeneration++
			m.Missing, m.Generation = false, s.LastInstanceGeneration
		default:
			continue
		}
		changed = true
	}
	return changed
}
