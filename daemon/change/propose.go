package change

import (
	"context"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/specs"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
)

// propose plans a spec, or returns the reason why it is not possible. It changes nothing.
func (cs *Changes) propose(ctx context.Context, d *spec.Document, match *uint64, a planner.Authority) (*state.Proposal, error) {
	now, s := cs.State.Desired(), d.Spec
	base := s.Base
	s.Base = nil
	text, err := spec.Encode(s)
	if err != nil {
		return nil, err
	}
	acc := cs.State.Stored().Accepted
	same := now.Spec != nil && acc != nil && acc.YAML == string(text)
	if base != nil && match == nil && !same { // The spec in force loses nothing by itself, whatever it was edited from.
		match = base
	}
	if match != nil && *match != now.Generation {
		return nil, specs.Stale(s, *match, acc, cs.State.Stored().Revisions)
	}
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	cs.Identities.QueryNames(s, server.NameWait, true)
	node := cs.Observer.Observe(ctx)
	if node.DriverErr != nil && len(s.GPUs) > 0 {
		return nil, report.DriverError(node.DriverErr)
	}
	byDefault := s.Node.Isolation == nil || s.Node.Isolation.Migration == ""
	s.Normalize() // The document is stored as written, without defaults: defaults may change with a version.
	resolved, found, err := spec.Resolve(s, append(node.Identities(), node.Missing...))
	if err != nil {
		return nil, d.Located(err)
	}
	p := &state.Proposal{
		Intent:   state.ToApply,
		Command:  spec.Command(d.File),
		Node:     node,
		Resolved: resolved,
		Want:     state.DesiredOf(s, resolved, now.Generation+1),
		YAML:     string(text),
	}
	if same && state.SameResolved(now, p.Want) {
		p.Intent, p.Want.Generation = p.Intent.InForce(), now.Generation
	}
	if err := cs.renames(p); err != nil {
		return nil, d.Located(err)
	}
	if err := planner.FeasibleSpec(p.Want, node); err != nil {
		return nil, d.Located(err)
	}
	targets := p.Want.PowerTargets(node)
	if err := state.PowerError(targets, cs.Power.Plan(ctx, targets, true).Problems); err != nil {
		return nil, d.Located(err)
	}
	if err := cs.Memory.Refuse(p.Want, node); err != nil {
		return nil, err
	}
	said := remarks{byDefault: byDefault}
	for _, w := range found {
		said.found = append(said.found, w.Error())
	}
	return p, cs.planProposal(ctx, p, said, a)
}
