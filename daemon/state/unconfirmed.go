package state

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mig"
)

// NoteUnconfirmed records, for a GPU on which a change failed, what its steps may have created: that a call did not answer in
// time does not mean that it did nothing. What is there now is recorded; if the GPU was not read back, or the outcome of a step is
// not known, everything that they would create, and what gpushare managed that their undo would create again. g is nil if the GPU was
// not read back. steps are those that may have been begun. The record stays until a change is read back.
func NoteUnconfirmed(s *store.State, id gpu.UUID, g *observe.GPU, unknown bool, e store.Epoch, steps []step.Step, now time.Time) {
	created := createdInstances(steps, id)
	isThere := func(in store.CreatedInstance) bool { return g != nil && slices.ContainsFunc(g.Instances, in.Is) }
	if g != nil && !unknown {
		created = slices.DeleteFunc(created, func(in store.CreatedInstance) bool { return !isThere(in) })
	} else {
		was := s.Achieved[id]
		for _, in := range destroyedInstances(steps, id) {
			if sameLoad(was.Epoch, e) && slices.ContainsFunc(was.Layout, in.Is) && !isThere(in) { // What is there is recorded as achieved.
				created = append(created, in)
			}
		}
	}
	if len(created) == 0 {
		return
	}
	u := s.Unconfirmed[id]
	if !sameLoad(u.Epoch, e) {
		u = store.Unconfirmed{Since: now, Epoch: e}
	}
	for _, in := range created {
		if !slices.Contains(u.Created, in) {
			u.Created = append(slices.Clone(u.Created), in)
		}
	}
	if s.Unconfirmed == nil {
		s.Unconfirmed = map[gpu.UUID]store.Unconfirmed{}
	}
	s.Unconfirmed[id] = u
}

// createdInstances are the instances that steps create on a GPU. An instance that they complete existed before.
func createdInstances(steps []step.Step, id gpu.UUID) []store.CreatedInstance {
	return instancesOf(steps, id, mig.KindCreate)
}

// destroyedInstances are those that steps destroy, and their undo creates.
func destroyedInstances(steps []step.Step, id gpu.UUID) []store.CreatedInstance {
	return instancesOf(steps, id, mig.KindDestroy)
}

// instancesOf are the instances of the steps of one kind that have an undo.
func instancesOf(steps []step.Step, id gpu.UUID, kind string) (out []store.CreatedInstance) {
	for i := range steps {
		var args mig.InstanceArgs
		s := &steps[i]
		if s.GPU == string(id) && s.Kind == kind && len(s.Undo) > 0 && json.Unmarshal(s.Args, &args) == nil {
			out = append(out, store.CreatedInstance{ProfileID: args.ProfileID, Placement: args.Placement})
		}
	}
	return out
}

// VoidUnconfirmed removes the records of GPUs whose instances ended with a boot or a load of the driver, and reports whether
// there was one. With dry it only reports.
func VoidUnconfirmed(s *store.State, node *observe.Node, dry bool) (any bool) {
	for id, u := range s.Unconfirmed {
		if EpochEnded(u.Epoch, node) {
			any = true
			if !dry {
				delete(s.Unconfirmed, id)
			}
		}
	}
	return any
}

// ForgetAbsent forgets what a change may have created on a GPU that gpushare does not manage and that answers without it: what another
// program creates in its place is not gpushare's. It reports whether that changed the record.
func ForgetAbsent(s *store.State, id gpu.UUID, g *observe.GPU) bool {
	u := s.Unconfirmed[id]
	left := slices.DeleteFunc(
		slices.Clone(u.Created), func(in store.CreatedInstance) bool { return !slices.ContainsFunc(g.Instances, in.Is) },
	)
	if len(left) == len(u.Created) {
		return false
	}
	u.Created = left
	s.Unconfirmed[id] = u
	if len(left) == 0 {
		delete(s.Unconfirmed, id)
	}
	return true
}

// Owned is what gpushare manages on a GPU: what it was last read back as having reached, and what a change whose outcome is not
// known may have created, unless a boot or a load of the driver has removed it since: what is in its place now was created by another
// program. ok is false if neither is recorded. node is the last observation; nil: there is none.
func Owned(st *store.State, id gpu.UUID, node *observe.Node) (a store.Achieved, ok bool) {
	a, ok = st.Achieved[id]
	if node != nil && EpochEnded(a.Epoch, node) {
		a.Layout, a.Instances = nil, nil
	}
	u, has := st.Unconfirmed[id]
	if !has || node != nil && EpochEnded(u.Epoch, node) {
		return a, ok
	}
	a.Layout = slices.Clone(a.Layout)
	for _, in := range u.Created {
		if !slices.ContainsFunc(a.Layout, in.Is) {
			a.Layout = append(a.Layout, gpu.Instance{ProfileID: in.ProfileID, Placement: in.Placement})
		}
	}
	return a, true
}

// sameLoad reports whether instances of one epoch exist in the other, as far as boots and loads of the driver end them.
func sameLoad(a, b store.Epoch) bool { return a.Boot == b.Boot && a.Driver == b.Driver }

// forgetUnconfirmed forgets what a change may have created at a placement, because it was removed.
func forgetUnconfirmed(s *store.State, id gpu.UUID, at gpu.Placement) {
	u, ok := s.Unconfirmed[id]
	if !ok {
		return
	}
	u.Created = slices.DeleteFunc(slices.Clone(u.Created), func(c store.CreatedInstance) bool { return c.Placement == at })
	s.Unconfirmed[id] = u
	if len(u.Created) == 0 {
		delete(s.Unconfirmed, id)
	}
}
