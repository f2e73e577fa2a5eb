package planner

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// The kinds of step that end a lease. They have no undo.
const (
	KindLeaseStop    = "lease.stop"    // and stop its processes
	KindLeaseRelease = "lease.release" // its processes continue
)

// LeaseStopArgs are the arguments of both.
type LeaseStopArgs struct {
	Lease string `json:"lease"`
}

// PlanStops plans the end of the leases that cannot continue under a spec: the grant was removed, the GPU has another mode,
// or the instance is removed. It is pure; Admit checks the authority. The stops are steps of the node, not of a GPU: steps of
// the node run first, before slices are removed and before any of the GPUs of a lease changes.
//
// removed has the leases of users who are members no more under the spec, by id, with why. They are stopped where the tenant says so.
func PlanStops(
	want *state.Desired, n *observe.Node, live []lease.Lease, hardware []step.Step, removed map[string]string,
) []step.Step {
	var out []step.Step
	for i := range live {
		l := &live[i]
		reason := stopReason(want, n, l, hardware)
		if why := removed[l.ID]; reason == "" && why != "" && want.StopsOnRemoval(l.Terms.Tenant) {
			reason = why + " (on_removal: stop)"
		}
		if reason != "" {
			out = append(out, stopStep(l, reason))
		}
	}
	return out
}

// RemovalWarnings counts, for each tenant, the leases of users who are members no more under a spec, and says what becomes of them.
func RemovalWarnings(want *state.Desired, live []lease.Lease, removed map[string]string) []string {
	ids := map[string][]string{}
	for i := range live {
		if l := &live[i]; removed[l.ID] != "" {
			ids[l.Terms.Tenant] = append(ids[l.Terms.Tenant], l.ID+" ("+l.User+")")
		}
	}
	var out []string
	for _, tenant := range slices.Sorted(maps.Keys(ids)) {
		if _, ok := want.Tenant(tenant); !ok {
			continue // All its leases are stopped, of members too.
		}
		what := "will go on (on_removal: continue)"
		if want.StopsOnRemoval(tenant) {
			what = "will stop (on_removal: stop)"
		}
		out = append(
			out,
			fmt.Sprintf(
				"%s of removed members of tenant %s %s: %s", text.Count(len(ids[tenant]), "lease"), tenant, what,
				strings.Join(ids[tenant], ", "),
			),
		)
	}
	return out
}

// UnsureWarnings names, for each tenant, the leases of users about whom the directory did not answer.
func UnsureWarnings(want *state.Desired, live []lease.Lease, unsure []int) []string {
	ids := map[string][]string{}
	for i := range live {
		l := &live[i]
		uid, has := l.RightOf()
		if _, ok := want.Tenant(l.Terms.Tenant); ok && has && slices.Contains(unsure, uid) {
			ids[l.Terms.Tenant] = append(ids[l.Terms.Tenant], l.ID+" ("+l.User+")")
		}
	}
	var out []string
	for _, tenant := range slices.Sorted(maps.Keys(ids)) {
		out = append(
			out,
			fmt.Sprintf(
				"this host's directory does not answer: it is not known whether the users of %s of tenant %s are still members of it: %s",
				text.Count(len(ids[tenant]), "lease"), tenant, strings.Join(ids[tenant], ", "),
			),
		)
	}
	return out
}

func stopStep(l *lease.Lease, reason string) step.Step {
	return step.Step{
		Kind: KindLeaseStop, Phase: step.RevokeAccess, Args: step.Must(LeaseStopArgs{l.ID}),
		Text: "stop lease " + l.ID, Reason: reason, Disruption: step.Running, Disturbs: []step.Subject{step.LeaseOf(l.ID, l.User)},
	}
}

func stopReason(want *state.Desired, n *observe.Node, l *lease.Lease, hardware []step.Step) string {
	may, ok := want.Grants[state.GrantKey{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}]
	if !ok {
		if l.Origin == lease.OriginLogin || l.Origin == lease.OriginUnit {
			return "" // Adoption releases it when the spec is in force; its processes continue.
		}
		return fmt.Sprintf("the spec no longer has grant %s of %s", l.Terms.Spec.Name, l.Terms.Tenant)
	}
	for _, id := range l.Place.GPUs {
		if mode := want.Mode(id); mode != l.Terms.Spec.Mode() {
			return fmt.Sprintf("its GPU becomes %s", mode)
		}
		if !slices.Contains(may, id) {
			return fmt.Sprintf("grant %s of %s may no longer use its GPU", l.Terms.Spec.Name, l.Terms.Tenant)
		}
		if l.Place.Instance != nil && sharesInstance(want, n, id, l) != l.Terms.Spec.InInstance() {
			if l.Terms.Spec.InInstance() {
				return "its MIG instance is no longer shared through MPS"
			}
			return "its MIG instance becomes shared through MPS"
		}
		if l.Place.Instance != nil && destroys(hardware, id, *l.Place.Instance) {
			return "its MIG instance is removed"
		}
	}
	return ""
}

// sharesInstance reports whether the instance of a lease is shared through MPS under a spec.
func sharesInstance(want *state.Desired, n *observe.Node, id gpu.UUID, l *lease.Lease) bool {
	g, ok := n.GPU(id)
	if !ok || g.Profiles == nil {
		return want.SharesInstances(id, nil, l.Place.Profile)
	}
	name := l.Place.Profile
	if in := g.InstanceAt(*l.Place.Instance); in != nil {
		name = g.Profiles.GIName(in.ProfileID) // As this driver names it.
	}
	return want.SharesInstances(id, g.Profiles, name)
}

func destroys(hardware []step.Step, id gpu.UUID, at gpu.Placement) bool {
	return slices.ContainsFunc(hardware, func(s step.Step) bool {
		var args mig.InstanceArgs
		return s.Kind == mig.KindDestroy && s.GPU == string(id) && json.Unmarshal(s.Args, &args) == nil && args.Placement == at
	})
}
