package health

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/observe"
)

// updateConditionsLocked reports the GPUs that take no new lease, and each finding. No text names a user, a process or a lease.
func (k *Health) updateConditionsLocked(node *observe.Node) {
	out := map[string]api.Condition{}
	var lost []string
	for i := range node.GPUs {
		id := node.GPUs[i].Identity.UUID
		name := k.nameOf(id)
		if r := k.record(id); !r.Open() {
			out[string(id)] = api.Condition{
				GPU:     string(id),
				Message: name + " takes no new lease: " + r.Reason(),
				Hint:    r.Helps(indexOf(node, id)),
			}
		}
		if k.saysLost(id) {
			lost = append(lost, string(id))
		}
		for _, f := range k.ofLocked(id).findings {
			hint := f.Hint
			if f.Reset {
				hint = "when it is idle, reset it: " + gpu.ResetCommands(indexOf(node, id))
			}
			out[string(id)+" "+f.Rule] = api.Condition{GPU: string(id), Message: name + ": " + f.Text, Hint: hint}
		}
	}
	k.Conditions.ReplaceCovering("health", out, "gpu", lost) // One loss is one condition, whichever is found first.
}

// saysLost reports whether the condition of a GPU says that it is lost. It is about one that was closed for this reason: of
// another one that stopped answering later the condition says something else.
func (k *Health) saysLost(id gpu.UUID) bool {
	r := k.record(id)
	return r.State == rules.Closed && rules.Of(r.XID).Class == rules.Lost
}

// Status is what the status shows of a GPU.
func (k *Health) Status(id gpu.UUID) *api.GPUHealth {
	r := k.record(id)
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.ofLocked(id)
	out := &api.GPUHealth{State: api.HealthOK, Readings: wire(g)}
	switch {
	case !r.Open():
		out.State, out.Since, out.Reason = r.State, &r.Since, r.Reason()
	case len(g.findings) > 0:
		out.State, out.Reason = api.HealthWarning, g.findings[0].Text
	}
	return out
}

// wire are the last readings; nil before the first.
func wire(g *known) *api.HealthReadings {
	h := g.last
	if h == nil || isEmpty(h) {
		return nil
	}
	out := &api.HealthReadings{
		ReadAt: g.readAt, Temperature: h.Temperature, MemoryTemperature: h.MemoryTemperature, SlowdownTemperature: h.SlowdownTemperature,
		Throttle: h.Throttle, PCIeReplays: h.PCIeReplays, Recovery: h.Recovery,
	}
	if e := h.ECC; e != nil {
		out.CorrectedErrors, out.UncorrectedErrors = &e.Corrected, &e.Uncorrected
	}
	if r := h.Rows; r != nil {
		out.Rows = &api.RemappedRows{Corrected: r.Corrected, Uncorrected: r.Uncorrected, Pending: r.Pending, Failed: r.Failed}
		if b := r.Banks; b != nil {
			out.Rows.FewLeft, out.Rows.NoneLeft = &b.Low, &b.None
		}
	}
	if n := h.NVLinkErrors; n != nil {
		out.NVLinkErrors = &api.NVLinkCounters{CRC: n.CRC, Replay: n.Replay, Recovery: n.Recovery}
	}
	return out
}

// isEmpty reports whether the driver gave no reading at all.
func isEmpty(h *gpu.Health) bool {
	return h.Temperature == nil && h.MemoryTemperature == nil && h.Power == nil && h.Throttle == nil && h.ECC == nil && h.Rows == nil &&
		h.NVLinkErrors == nil &&
		h.PCIeReplays == nil &&
		h.Recovery == ""
}
