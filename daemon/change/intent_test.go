package change

import (
	"testing"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
)

// A proposal has the intent that its caller and the spec in force make of it, and only one that accepts begins a generation.
func TestIntentsOfProposals(t *testing.T) {
	w := newFixture(t)
	apply := func() *state.Proposal {
		s, err := spec.Decode("node.yaml", []byte(sharedSpec))
		if err != nil {
			t.Fatal(err)
		}
		p, err := w.propose(t.Context(), spec.NewDocument("node.yaml", []byte(sharedSpec), s), nil, planner.Authority{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	unmanage := func(extent string) func() *state.Proposal {
		return func() *state.Proposal {
			p, err := w.unmanaging.Propose(t.Context(), extent, "root")
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
	}
	for i, c := range []struct {
		propose    func() *state.Proposal
		intent     state.Intent
		generation uint64
	}{
		{unmanage(store.UnmanagedAll), state.ToRemoveRest, 0},
		{apply, state.ToApply, 1},
		{apply, state.ToReapply, 1},
		{unmanage(store.UnmanagedRestrictions), state.ToUnmanage, 2},
		{unmanage(store.UnmanagedRestrictions), state.ToRemoveRest, 2},
		{unmanage(store.UnmanagedAll), state.ToUnmanage, 3},
		{unmanage(store.UnmanagedRestrictions), state.ToRemoveRest, 3},
		{apply, state.ToApply, 4},
	} {
		p := c.propose()
		if p.Intent != c.intent {
			t.Errorf("proposal %d is to %s, want to %s", i, p.Intent, c.intent)
		}
		w.carriedOut(p)
		var got uint64
		if acc := w.State.Stored().Accepted; acc != nil {
			got = acc.Generation
		}
		if got != c.generation || w.State.Desired().Generation != c.generation {
			t.Errorf(
				"after proposal %d generation %d is stored and %d in force, want %d",
				i,
				got,
				w.State.Desired().Generation,
				c.generation,
			)
		}
	}
}
