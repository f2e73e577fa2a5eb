package publish

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
)

// passing are the kinds of closures that end by themselves within seconds, as the creation of an instance for a claim. A request waits
// for that, and the kubelet asks again: a taint would only make the scheduler forget the node, and each claim would publish twice.
var passing = map[string]bool{"changing": true}

// lost are the states in which the driver does not reach a GPU, which it says at once. A GPU that is unreadable may only have had one call
// that failed.
var lost = map[string]bool{"lost": true, "missing": true, "no-driver": true}

// taints are why nothing is placed on a GPU, or in one instance of it: a taint for each kind. What runs goes on, unless the GPU is lost.
func (n *Node) taints(g *api.GPUStatus, at *api.MIGPlacement) []resourceapi.DeviceTaint {
	kinds := map[string]bool{}
	var out []resourceapi.DeviceTaint
	add := func(kind, why string, effect resourceapi.DeviceTaintEffect) {
		if kind == "" || kinds[kind] || len(out) == resourceapi.DeviceTaintsMaxLength {
			return
		}
		kinds[kind] = true
		out = append(out, resourceapi.DeviceTaint{Key: Driver + "/" + kind, Value: label(why), Effect: effect})
	}
	if n.evicts(g) {
		add(g.State, g.Reason, resourceapi.DeviceTaintEffectNoExecute)
	}
	for i := range g.Closures {
		c := &g.Closures[i]
		switch {
		case passing[c.Kind], c.Tenant != "" && c.Tenant != n.Tenant.Name:
		case c.Instance != nil && (at == nil || *c.Instance != *at):
		default:
			add(c.Kind, c.Reason, resourceapi.DeviceTaintEffectNoSchedule)
		}
	}
	if len(g.Closures) == 0 && len(out) == 0 && closedState[g.State] {
		add(g.State, g.Reason, resourceapi.DeviceTaintEffectNoSchedule)
	}
	if n.Status.Node.Maintenance != nil {
		add("maintenance", "", resourceapi.DeviceTaintEffectNoSchedule)
	}
	return out
}

// closedState are the states in which a GPU takes no lease, for a status without closures. With them they say more: the state may be that
// of one instance.
var closedState = map[string]bool{
	"held": true, "cordoned": true, "unhealthy": true, "drained": true, "mps-down": true, "stuck": true, "mismatch": true, "parked": true,
	"unreadable": true,
}

// label is a reason as the value of a taint: at most 63 letters, digits and .-_ that begin and end with a letter or digit.
func label(why string) string {
	s := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_':
			return r
		}
		return '-'
	}, why)
	for strings.Contains(s, "--") {
		s = strings.ReplaceAll(s, "--", "-")
	}
	return strings.Trim(s[:min(len(s), 63)], "-._")
}
