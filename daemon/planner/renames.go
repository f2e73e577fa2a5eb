package planner

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/lease"
)

// NamesInUse refuses a spec that gives a name to another tenant or grant while leases run in the cgroup slice that has it, from before
// their own was renamed: the limits of both would be on one slice. While leases run in the slices of a former name of their tenant new
// ones of all of its grants join them there, so the name of a grant counts there too. live are the leases under the names of the spec.
func NamesInUse(want *state.Desired, live []lease.Lease) error {
	for _, f := range state.FormerSlices(want, live) {
		_, tenant := want.Tenant(f.Name.Tenant)
		_, grant := want.Grants[state.GrantKey{Tenant: f.Of.Tenant, Grant: f.Name.Grant}]
		what, name, of := "tenant", f.Name.Tenant, "tenant "+f.Of.Tenant
		switch {
		case f.Name.Grant == "" && tenant:
		case f.Name.Grant != f.Of.Grant && grant:
			what, name, of = "grant", f.Name.Grant, fmt.Sprintf("grant %s of %s", f.Of.Grant, f.Of.Tenant)
		default:
			continue
		}
		n := 0
		for i := range live {
			if s := live[i].SliceKey(); s != live[i].Terms.Key() && s.Tenant == f.Name.Tenant &&
				(f.Name.Grant == "" || s.Grant == f.Name.Grant) {
				n++
			}
		}
		return &api.Error{
			Kind: api.KindConflict,
			Message: fmt.Sprintf(
				"cannot add %s %s: %s, which had this name before, and %s in its cgroup slice", what, name, of, running(n),
			),
			Hint: "nothing was changed; give it another name, or apply the spec when they have ended: 'gpushare lease list' shows them",
		}
	}
	return nil
}

// Renames describes the renames of a spec, with how many leases and requests go on under the new names. live are under these, and all under
// those before: among them are the requests that wait.
func Renames(recorded rename.List, live []lease.Lease, all []api.Lease) []api.PlanRename {
	var out []api.PlanRename
	for i := range recorded {
		r := &recorded[i]
		of := func(tenant, grant string) bool {
			return tenant == r.To.Tenant && (r.To.Grant == "" || grant == r.To.Grant)
		}
		w := api.PlanRename{Tenant: r.From.Tenant, Grant: r.From.Grant, To: r.To.Tenant}
		w.Text = fmt.Sprintf("rename tenant %s to %s", r.From.Tenant, r.To.Tenant)
		if r.From.Grant != "" {
			w.To = r.To.Grant
			w.Text = fmt.Sprintf("rename grant %s of %s to %s", r.From.Grant, r.To.Tenant, r.To.Grant)
		}
		for j := range live {
			if of(live[j].Terms.Tenant, live[j].Terms.Spec.Name) {
				w.Leases++
			}
		}
		for j := range all {
			n := recorded.Now(rename.Name{Tenant: all[j].Tenant, Grant: all[j].Grant})
			if all[j].State == api.LeaseQueued && of(n.Tenant, n.Grant) {
				w.Waiting++
			}
		}
		w.Text += goOn(w.Leases, w.Waiting)
		out = append(out, w)
	}
	return out
}

func goOn(leases, waiting int) string {
	out := ""
	if leases > 0 {
		out = fmt.Sprintf(": %s %s on", text.Count(leases, "lease"), goes(leases))
	}
	switch {
	case waiting > 0 && out == "":
		out = fmt.Sprintf(": %s %s on", text.Count(waiting, "request"), waits(waiting))
	case waiting > 0:
		out += fmt.Sprintf(", %s %s on", text.Count(waiting, "request"), waits(waiting))
	}
	return out
}

func goes(n int) string {
	if n == 1 {
		return "goes"
	}
	return "go"
}

func waits(n int) string {
	if n == 1 {
		return "waits"
	}
	return "wait"
}
