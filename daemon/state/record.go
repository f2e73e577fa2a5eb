package state

import (
	"slices"

	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// RecordAchieved records the state of a GPU that was read back after these steps.
func RecordAchieved(s *store.State, want *Desired, g *observe.GPU, e store.Epoch, steps []step.Step) {
	id := g.Identity.UUID
	if s.Achieved == nil {
		s.Achieved = map[gpu.UUID]store.Achieved{}
	}
	was := s.Achieved[id]
	now := store.Achieved{Generation: want.Generation, Epoch: e, MIG: g.MIG.Current}
	now.Layout, now.Instances = ManagedLayout(s, want.GPUs[id], g, &was, e, steps)
	s.Achieved[id] = now
	closing.Held.Open(s, closing.OnGPU(id))
	delete(s.Unconfirmed, id)
}

// RecordUnread records a GPU whose steps were all verified, but that does not answer at the end. Its new instances are
// managed: without the record they would be foreign when the GPU answers again.
func RecordUnread(s *store.State, want *Desired, g *observe.GPU, e store.Epoch, steps []step.Step) error {
	id := g.Identity.UUID
	was := s.Achieved[id]
	own := slices.DeleteFunc(slices.Clone(steps), func(st step.Step) bool { return st.GPU != string(id) })
	on, layout, err := mig.After(was.MIG, was.Layout, own)
	if err != nil {
		return err
	}
	expected := observe.GPU{Snapshot: gpu.Snapshot{Identity: g.Identity, Instances: layout, MIG: gpu.MIGState{Current: on}}}
	RecordAchieved(s, want, &expected, e, own)
	return nil
}

// Unreached are the GPUs that answer, and that no change has brought to the spec in force: they did not answer when it was
// applied. A change that fails on a GPU is recorded with the GPU.
func Unreached(st *store.State, want *Desired, node *observe.Node) []gpu.UUID {
	var out []gpu.UUID
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		a, ok := st.Achieved[id]
		if ok && !closing.Held.Closes(st, id) && g.Err == nil && want.Manages(id) && a.Generation < want.Generation {
			out = append(out, id)
		}
	}
	return out
}

// RecordUnmanaged records what unmanage achieved. What could not be removed stays recorded, so that the next attempt finds it.
func RecordUnmanaged(s *store.State, want *Desired, node *observe.Node, failed map[gpu.UUID]string, empty bool) {
	if want.Unmanaged != nil && want.Unmanaged.All {
		for i := range node.GPUs {
			g := &node.GPUs[i]
			id := g.Identity.UUID
			if _, bad := failed[id]; bad || g.Err != nil {
				continue
			}
			if a, ok := Owned(s, id, node); ok { // What is in use by a process that cannot be stopped, say, is left.
				if s.Achieved == nil {
					s.Achieved = map[gpu.UUID]store.Achieved{}
				}
				s.Achieved[id] = a
				KeepPresent(s, id, g, false)
			}
			if a := s.Achieved[id]; len(a.Layout) == 0 {
				delete(s.Achieved, id)
			}
			delete(s.Unconfirmed, id)
			if restored(s.OriginalModes[id], g) {
				delete(s.OriginalModes, id)
			}
			closing.Held.Open(s, closing.OnGPU(id))
		}
	}
	if empty {
		s.ActiveRestrictions = false
	}
}

// RecordIdentities records what the GPUs are. Those that do not answer and those that are missing keep their record.
func RecordIdentities(s *store.State, node *observe.Node) {
	was := s.Identities
	s.Identities = map[gpu.UUID]gpu.Identity{}
	for _, id := range node.Missing {
		if old, ok := was[id.UUID]; ok {
			s.Identities[id.UUID] = old
		}
	}
	for i := range node.GPUs {
		id := node.GPUs[i].Identity
		if old, ok := was[id.UUID]; ok && node.GPUs[i].Err != nil {
			id = old
		}
		if id.Index >= 0 && id.UUID != "" {
			id.Error = ""
			s.Identities[id.UUID] = id
		}
	}
}
