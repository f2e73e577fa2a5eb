package state

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/power"
)

// PowerTargets are the GPUs of the node with the power limits that they should have.
func (d *Desired) PowerTargets(n *observe.Node) []power.Target {
	out := make([]power.Target, 0, len(n.GPUs))
	for i := range n.GPUs {
		g := &n.GPUs[i]
		t := power.Target{
			GPU:   g.Identity.UUID,
			Name:  fmt.Sprintf("%s (%s)", g.Identity.Name(), g.Identity.Model),
			Epoch: n.Epoch.String(),
			Err:   g.Err,
			Limit: g.PowerLimit,
		}
		if limit, path := d.powerCap(t.GPU); limit != nil {
			t.Cap, t.Path = limit.Milliwatts(), path
		}
		out = append(out, t)
	}
	return out
}

// powerCap is the power cap of a GPU, with the path of its key in the spec; nil without one. The GPU's entry wins over the node.
func (d *Desired) powerCap(id gpu.UUID) (limit *api.Watts, path string) {
	if d.Spec == nil || !d.Manages(id) {
		return nil, ""
	}
	if e := d.GPUs[id]; e.Health != nil && e.Health.PowerCap != nil {
		i := slices.IndexFunc(d.Spec.GPUs, func(other api.GPUSpec) bool { return other.Health == e.Health })
		return e.Health.PowerCap, fmt.Sprintf("gpus[%d].health.power_cap", i)
	}
	if h := d.Spec.Node.Health; h != nil {
		return h.PowerCap, "node.health.power_cap"
	}
	return nil, ""
}

// PowerError refuses caps that a board cannot have, those of boards that do not report their power, and a node whose limits cannot
// be read.
func PowerError(targets []power.Target, problems map[gpu.UUID]error) error {
	var wrong []api.FieldError
	for i := range targets {
		t := &targets[i]
		err := problems[t.GPU]
		if bad, ok := errors.AsType[*power.Infeasible](err); ok {
			wrong = append(wrong, api.FieldError{Path: t.Path, Message: bad.Text, Hint: bad.Hint})
		} else if err != nil {
			return &api.Error{
				Kind:    api.KindUnavailable,
				Message: "cannot read the power limit of " + t.Name + ": " + err.Error(),
				Hint:    "nothing was changed; try again",
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return &api.Error{Kind: api.KindInfeasible, Message: wrong[0].Error(), Fields: wrong, Hint: "nothing was changed"}
}
