package lease

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Request is a request for a lease. The caller determines the user and the tenants that the user is a member of.
type Request struct {
	Tenant  string    // empty: the only one that the caller is a member of
	Grant   string    // empty: chosen
	Kind    string    // "", "mig", "mig:2g.10gb", "exclusive", "timeslice" or "mps": the kind of the grant
	Member  []string  // the tenants that the caller is a member of
	Admin   bool      // may request for any tenant
	By      Requester // whether the user still has the right, when it is used; nil: the daemon requests for itself
	User    string
	UID     int
	Command []string
	// Origin, Cgroup, Unit and AttachedBy are copied to the lease. An empty Origin means OriginRun.
	Origin     string
	Cgroup     string
	Unit       string
	AttachedBy int
	Key        string // chosen by the caller; a repeated request has the same
	// Immediate: it is placed when Submit returns, or is refused. No instance is created for it.
	Immediate bool
	// Engine is set if an engine requests it: its place is what GPUs and Instance name, or none.
	Engine   *Engine
	Instance string // a MIG UUID, or the memory slice at which it begins, on the one GPU of GPUs
	Own      Own
	// GPUs are the GPUs on which it may be placed, each by its index or UUID; none: all that the grant may use.
	GPUs []string
	// MaxTime is how long the lease runs, at most as long as its grant says; nil: as long.
	MaxTime *api.Duration
	// Wait is how long Await waits for a place; nil: it is refused at once, 0: as long as the context lives.
	Wait *time.Duration
}

// resolve returns the tenant and the grants that may serve the request, in spec order. It does not check capacity.
func (r *Request) resolve(grants []Grant) (tenant string, candidates []Grant, err error) {
	tenant, err = r.tenant(grants)
	if err != nil {
		return "", nil, err
	}
	kind, profile, err := r.parseKind()
	if err != nil {
		return "", nil, err
	}
	var names []string
	for i := range grants {
		g := &grants[i]
		if g.Tenant != tenant {
			continue
		}
		names = append(names, g.Spec.Name)
		if r.Grant != "" && g.Spec.Name != r.Grant || kind != "" && g.Kind() != kind ||
			profile != "" && !gpu.SameProfile(g.requirement(), profile) {
			continue
		}
		candidates = append(candidates, *g)
	}
	switch {
	case len(candidates) > 0:
		return tenant, candidates, nil
	case len(names) == 0:
		return "", nil, &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("cannot find a grant of tenant %s: it has none", tenant),
			Hint:    "ask the administrator for a grant",
		}
	case r.Grant != "" && !slices.Contains(names, r.Grant):
		return "", nil, &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("cannot find grant %q of tenant %s", r.Grant, tenant),
			Hint:    "its grants are " + strings.Join(names, ", "),
		}
	case r.Grant != "":
		return "", nil, &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot use grant %s of tenant %s for %q: it is of another kind", r.Grant, tenant, r.Kind),
			Hint:    "name the grant or the kind of GPU, not both",
		}
	}
	return "", nil, &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("cannot find a grant of tenant %s for %q", tenant, r.Kind),
		Hint:    "its grants are " + strings.Join(names, ", "),
	}
}

// mostNamed is how many tenants a hint names.
const mostNamed = 8

// tenantsOf are the tenants that have grants, in their order.
func tenantsOf(grants []Grant) []string {
	var out []string
	for i := range grants {
		if !slices.Contains(out, grants[i].Tenant) {
			out = append(out, grants[i].Tenant)
		}
	}
	return out
}

// nameTenant is what an administrator does who has no tenant of their own.
func nameTenant(tenants []string) string {
	switch n := len(tenants); {
	case n == 0:
		return "the spec in force has no grants: see 'gpushare tenant list'"
	case n > mostNamed:
		return "name one with -t: " + strings.Join(tenants[:mostNamed], ", ") + ", …"
	}
	return "name one with -t: " + strings.Join(tenants, ", ")
}

// nearestTenant is the tenant that was meant, for who may know which there are.
func nearestTenant(word string, tenants []string) string {
	if near, ok := api.Nearest(word, tenants); ok {
		return "did you mean " + near + "? 'gpushare tenant list' shows them"
	}
	return "see 'gpushare tenant list'"
}

// tenant returns the tenant of the request.
func (r *Request) tenant(grants []Grant) (string, error) {
	known := func(t string) bool {
		return slices.ContainsFunc(grants, func(g Grant) bool { return g.Tenant == t })
	}
	if r.Tenant != "" {
		if !r.Admin && !slices.Contains(r.Member, r.Tenant) {
			// The same message whether the tenant exists or not: a caller that is no member must not learn which
			// tenants there are.
			return "", &api.Error{
				Kind:    api.KindDenied,
				Message: fmt.Sprintf("cannot use tenant %s: you are no member of it", r.Tenant),
				Hint:    memberHint(r.Member),
			}
		}
		if !known(r.Tenant) && !slices.Contains(r.Member, r.Tenant) {
			return "", &api.Error{
				Kind:    api.KindNotFound,
				Message: fmt.Sprintf("cannot find tenant %q with a grant", r.Tenant),
				Hint:    nearestTenant(r.Tenant, tenantsOf(grants)),
			}
		}
		return r.Tenant, nil
	}
	switch len(r.Member) {
	case 1:
		return r.Member[0], nil
	case 0:
		if r.Admin {
			return "", &api.Error{
				Kind:    api.KindInvalid,
				Message: "cannot choose a tenant: you are a member of none",
				Hint:    nameTenant(tenantsOf(grants)),
			}
		}
		return "", &api.Error{
			Kind:    api.KindDenied,
			Message: "cannot use a GPU: you are a member of no tenant",
			Hint:    "ask the administrator to add you to one",
		}
	}
	if r.Grant != "" {
		var having []string
		for _, t := range r.Member {
			if slices.ContainsFunc(grants, func(g Grant) bool { return g.Tenant == t && g.Spec.Name == r.Grant }) {
				having = append(having, t)
			}
		}
		if len(having) == 1 {
			return having[0], nil
		}
	}
	return "", &api.Error{
		Kind:    api.KindInvalid,
		Message: "cannot choose a tenant: you are a member of " + strings.Join(r.Member, ", "),
		Hint:    "name one with -t",
	}
}

func memberHint(member []string) string {
	if len(member) == 0 {
		return "ask the administrator to add you to it"
	}
	return "you are a member of " + strings.Join(member, ", ")
}

// parseKind parses the requested kind of GPU.
func (r *Request) parseKind() (kind, profile string, err error) {
	kind, profile, _ = strings.Cut(r.Kind, ":")
	switch kind {
	case "", api.ModeMIG, api.ModeExclusive, api.ModeTimeslice, api.ModeMPS:
		if profile == "" || kind == api.ModeMIG {
			return kind, profile, nil
		}
	}
	return "", "", &api.Error{
		Kind:    api.KindInvalid,
		Message: fmt.Sprintf("cannot request kind %q", r.Kind),
		Hint:    "write mig, mig:PROFILE, exclusive, timeslice or mps",
	}
}
