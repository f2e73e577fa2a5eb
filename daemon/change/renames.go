package change

import (
	"slices"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
)

// renames sets which names of the spec in force the proposal replaces: those that it says itself, and for a rollback those that were made
// since the spec that it puts in force again.
func (cs *Changes) renames(p *state.Proposal) error {
	now, stored := cs.State.Desired(), cs.State.Stored()
	p.Want.Renames = stored.Renames
	if !p.Intent.Accepts() {
		return nil
	}
	list, err := spec.Renames(now.Spec, p.Want.Spec, p.Want.Generation)
	if err != nil {
		return err
	}
	if of := rolledBack(p, stored.Revisions); of != nil {
		said := list
		for _, r := range spec.Back(now.Spec, p.Want.Spec, of.Generation, p.Want.Generation, stored.Renames) {
			if said.Now(r.From) == r.From {
				list = append(list, r)
			}
		}
	}
	for i := range list {
		list[i].At = cs.Now().UTC()
	}
	p.Want.Renames = stored.Renames.With(list)
	return planner.NamesInUse(p.Want, cs.Table.LiveUnder(p.Want.Renames))
}

// rolledBack is the revision that a rollback puts in force again, exactly as it was; nil: the proposal is none.
func rolledBack(p *state.Proposal, revisions []store.Revision) *store.Revision {
	i := slices.IndexFunc(revisions, func(r store.Revision) bool { return p.RequestsGeneration(r.Generation) && r.YAML == p.YAML })
	if i < 0 {
		return nil
	}
	return &revisions[i]
}
