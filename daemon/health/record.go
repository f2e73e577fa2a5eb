package health

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// transition changes the record of one GPU.
type transition struct {
	gpu    gpu.UUID
	change func(rules.Record) rules.Record
}

// record is why a GPU takes no new lease; the zero value if nothing of its own keeps it.
func (k *Health) record(id gpu.UUID) rules.Record {
	return closing.Health(k.State.Stored(), id)
}

// apply changes the record of a GPU, and reports what became of it.
func (k *Health) apply(t transition) {
	k.mu.Lock()
	was, now, err := k.applyLocked(t)
	k.mu.Unlock()
	k.changed(t.gpu, was, now, err)
}

// applyLocked writes the record down if it changes. A change that cannot be written is tried again with the next observation.
func (k *Health) applyLocked(t transition) (was, now rules.Record, err error) {
	was = k.record(t.gpu)
	if now = t.change(was); now == was {
		return was, was, nil
	}
	err = k.State.Store.Update(func(s *store.State) error {
		closing.SetHealth(s, t.gpu, now)
		return nil
	})
	if err != nil {
		k.again = append(k.again, t)
		return was, was, err
	}
	return was, now, nil
}

// changed reports that a GPU was closed or opened.
func (k *Health) changed(id gpu.UUID, was, now rules.Record, err error) {
	name := k.nameOf(id)
	if err != nil {
		k.Log.Error("cannot record the health of a GPU", "gpu", id, "error", err)
	}
	var text string
	switch {
	case was.State == now.State && was.Reason() == now.Reason():
		return
	case now.Open():
		text = name + " takes leases again: its readings are good"
	case now.State == rules.Testing:
		text = name + " is tested, and takes leases again if its readings are good"
	case was.State == rules.Testing:
		text = name + " stays closed to new leases: " + now.Reason()
	default:
		text = name + " takes no new lease: " + now.Reason()
	}
	// Not at the next pass of the loop: a request that comes now must not get a GPU that is closed, and the status has the reason.
	k.Admit()
	k.mu.Lock()
	k.updateConditionsLocked(k.Observed())
	k.mu.Unlock()
	k.Events.Publish(api.Event{Kind: "gpu.health", GPU: string(id), Message: text})
	k.Audit("gpushared", "health", text)
	k.Log.Warn("the health of a GPU changed", "gpu", id, "state", now.State, "reason", now.Reason())
	if now.State == rules.Testing {
		k.Due.Set()
	}
	k.Wake()
}

// nameOf is "GPU 1".
func (k *Health) nameOf(id gpu.UUID) string {
	if g, ok := k.Observed().GPU(id); ok && g.Identity.Index >= 0 {
		return g.Identity.Name()
	}
	return "GPU " + string(id)
}

// momentOf is a moment in the epoch of an observation.
func (k *Health) momentOf(node *observe.Node) rules.Moment {
	return rules.Moment{At: k.Now(), Boot: node.Epoch.Boot, Driver: node.Epoch.Driver}
}

// seen is what an observation says of a GPU.
func seen(node *observe.Node, g *observe.GPU) rules.Seen {
	s := rules.Seen{Answers: g.Err == nil && node.DriverErr == nil}
	s.Memory = s.Answers && g.Memory.Total > 0
	// Every other error is of the call, as of a worker that cannot start: it says nothing of the GPU.
	s.Lost = node.DriverErr == nil && gpu.IsAny(g.Err, gpu.ErrLost, gpu.ErrNotFound, gpu.ErrResetRequired)
	return s
}

// Converge follows an observation: GPUs that were reset are tested, and those that are no longer in the node are forgotten.
func (k *Health) Converge(node *observe.Node) {
	k.remember(node)
	k.mu.Lock()
	again := k.again
	k.again = nil
	k.mu.Unlock()
	for _, t := range again {
		k.apply(t)
	}
	k.followLost(node)
	m := k.momentOf(node)
	for _, c := range closing.Unhealthy.In(k.State.Stored()) {
		g, present := node.GPU(c.GPU)
		k.apply(transition{c.GPU, func(r rules.Record) rules.Record {
			switch {
			case present:
				return r.AfterObservation(seen(node, g), m)
			case node.DriverErr == nil && len(node.GPUs) > 0 && (r.Boot != m.Boot || r.Driver != m.Driver):
				return rules.Record{} // The board was taken out, or is another one now.
			}
			return r
		}})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.updateConditionsLocked(node)
}
