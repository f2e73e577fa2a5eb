package status

import (
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mps"
)

// stateOfClosed is the state of a GPU that is closed as a whole, by the kind of its closure. Other kinds say it in the reason alone.
func stateOfClosed(k closing.Kind, g *observe.GPU) string {
	switch k {
	case closing.Unanswered:
		return stateOf(g.Err)
	case closing.Changing:
		return "changing"
	case closing.Held, closing.Unhealthy, closing.Cordoned, closing.MPSDown, closing.Drained:
		return string(k)
	}
	return ""
}

// close says in the status of a GPU why it, its instances and its MPS take no lease. Its state is the first reason that has one, and
// its reason has all of them.
func (p *statusInputs) close(out *api.GPUStatus, g *observe.GPU) {
	whole := closing.OnGPU(g.Identity.UUID)
	var all, here closing.Closures
	for _, c := range p.closures {
		if c.GPU == whole.GPU {
			all = append(all, c)
		}
		if c.Where == whole {
			here = append(here, c)
		}
	}
	out.Closures = p.wireClosures(all, g)
	if p.desired.WantsMPS(whole.GPU) && !g.MPS.Healthy() &&
		len(here.Of(closing.Unanswered, closing.Changing, closing.Held, closing.MPSDown)) == 0 {
		here = append(here, store.Closure{Where: whole, Kind: string(closing.MPSDown), Reason: planner.MPSReason(g.MPS)}).Sorted()
	}
	var reasons []string
	for _, c := range here {
		if state := stateOfClosed(closing.Kind(c.Kind), g); state != "" && out.State == "ok" {
			out.State = state
		}
		if c.Kind != string(closing.Changing) { // The state says it.
			reasons = append(reasons, closing.Why(&c, g.Identity.Argument()))
		}
	}
	if out.State == "ok" {
		for _, d := range planner.DownInstances(p.desired, g, func(id gpu.UUID, in *gpu.Instance) bool { return !p.foreign(id, in) }) {
			out.State = string(closing.MPSDown)
			reasons = append(reasons, planner.DeviceName(g, d)+": "+planner.MPSReason(g.MPSOf(d)))
		}
	}
	out.Reason = strings.Join(reasons, "; ")
}

// wireClosures is the form of the API.
func (p *statusInputs) wireClosures(list closing.Closures, g *observe.GPU) (out []api.Closure) {
	for i := range list {
		c := &list[i]
		wire := api.Closure{
			Kind:   c.Kind,
			Reason: closing.Why(c, planner.MPSArguments(g, mps.Device{GPU: c.GPU, Instance: c.Instance})),
			By:     c.By,
			Tenant: c.Tenant,
		}
		if c.Instance.Size > 0 {
			wire.Instance = new(api.MIGPlacement(c.Instance))
		}
		if !c.Since.IsZero() {
			wire.Since = &c.Since
		}
		if !c.Until.IsZero() {
			wire.Until = &c.Until
		}
		out = append(out, wire)
	}
	return out
}

// heldReasonForMembers replaces the reason why a GPU is held, which may name other tenants' leases and processes.
const heldReasonForMembers = "only an administrator may see the reason"

// reasonForMembers is what members see of a closure; ok is false where they see it as it is.
func reasonForMembers(kind string) (text string, ok bool) {
	switch closing.Kind(kind) {
	case closing.Held:
		return heldReasonForMembers, true
	case closing.Cordoned:
		return "an administrator closed it to new leases", true
	}
	return "", false
}

// restrictClosures hides who closed a GPU, what names others, and what is about other tenants.
func restrictClosures(g *api.GPUStatus, c *server.Caller) {
	g.Closures = slices.Clone(g.Closures)
	g.Closures = slices.DeleteFunc(g.Closures, func(k api.Closure) bool { return k.Tenant != "" && !c.IsMember(k.Tenant) })
	var reasons []string
	hides := false
	for i := range g.Closures {
		k := &g.Closures[i]
		if text, hidden := reasonForMembers(k.Kind); hidden {
			k.Reason, k.By, hides = text, "", true
		}
		if k.Instance == nil && k.Tenant == "" && k.Kind != string(closing.Changing) {
			reasons = append(reasons, k.Reason)
		}
	}
	if hides {
		g.Reason = strings.Join(reasons, "; ")
	}
}
