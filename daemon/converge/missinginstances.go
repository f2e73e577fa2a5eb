package converge

import (
	"slices"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// recordMissing keeps which instances of ours are not there although nobody of us took them away: what comes back in their
// place is another instance, with the same UUIDs. Where they are made on demand it is not even ours.
func (cv *Converger) recordMissing(node *observe.Node) {
	want := cv.State.Desired()
	if node.DriverErr != nil || cv.State.LastChangeSeq() > node.Seq || cv.State.Changing() != nil || !want.Enforcing() {
		return
	}
	due := func(s *store.State, change bool) (any bool) {
		for id, a := range s.Achieved {
			g, ok := node.GPU(id)
			if !ok || g.Err != nil || state.EpochEnded(a.Epoch, node) {
				continue // After a boot all are gone, and come back by a change.
			}
			changed := false
			a.Layout, a.Instances = slices.Clone(a.Layout), slices.Clone(a.Instances)
			for i := len(a.Layout) - 1; i >= 0; i-- {
				present := slices.ContainsFunc(g.Instances, func(in gpu.Instance) bool {
					return in.Placement == a.Layout[i].Placement && in.ProfileID == a.Layout[i].ProfileID
				})
				m := state.InstanceRecordOf(&a, a.Layout[i].Placement)
				switch {
				case !present && want.Dynamic(id):
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
			any = any || changed
			if changed && change {
				s.Achieved[id] = a
			}
		}
		return any
	}
	if dry := *cv.State.Stored(); !due(&dry, false) {
		return
	}
	err := cv.State.Store.Update(func(s *store.State) error {
		if cv.State.LastChangeSeq() <= node.Seq { // Else a change ended after the node was looked at.
			due(s, true)
		}
		return nil
	})
	if err != nil {
		cv.Log.Warn("cannot record that an instance went without us", "error", err)
	}
}
