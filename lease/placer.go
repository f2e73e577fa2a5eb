package lease

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Name is the engine of the lease: the first word of its key.
func (e *Engine) Name() string {
	name, _, _ := strings.Cut(e.Key, ":")
	return name
}

// placer is who places the lease of the request: an engine, or api.ShareWithLocal for one that no engine sent.
func (r *Request) placer() string {
	if r.Engine != nil {
		return r.Engine.Name()
	}
	return api.ShareWithLocal
}

// placedBy writes into the grants who places the request, where a GPU has an engine. On other nodes nothing depends on it.
func (r *Request) placedBy(candidates []Grant, v *View) []Grant {
	if !slices.ContainsFunc(v.GPUs, func(d GPUView) bool { return d.Owner != "" }) {
		return candidates
	}
	out := slices.Clone(candidates)
	for i := range out {
		out[i].Placer = r.placer()
	}
	return out
}

// takesFrom reports whether a placer may place leases on the GPU. Without a placer the grant is not of a request: what it may ever
// have counts.
func (v *GPUView) takesFrom(placer string) bool {
	return v.Owner == "" || placer == "" || placer == v.Owner || slices.Contains(v.SharedWith, placer)
}

// placedElsewhere is why a request gets no lease on a GPU that its grant could use otherwise; empty if its engine may place it there.
func (g *Grant) placedElsewhere(v *GPUView) string {
	if v.takesFrom(g.Placer) || !g.allows(v) {
		return ""
	}
	return v.Owner + " places the leases there"
}

// placerHint is what helps a request that gets nothing on the GPU of an engine.
func placerHint(owner, placer string) string {
	if placer != api.ShareWithLocal {
		return fmt.Sprintf("only keys that begin with %s: have leases there, and this is one of %s", owner, placer)
	}
	way := "ask " + owner + " for it"
	switch owner {
	case api.OwnerSlurm:
		way = "submit a job to Slurm, as with 'sbatch --gres=shard:1'"
	case api.OwnerKubernetes:
		way = "create a pod in Kubernetes that claims it"
	}
	return way + "; an administrator may share the GPU: 'share_with: [local]' in its entry of the spec"
}

// elsewhere refuses a request whose GPUs an engine places that did not send it; nil if there is no such GPU.
func (r *Request) elsewhere(tenant string, candidates []Grant, v *View) error {
	for i := range v.GPUs {
		d := &v.GPUs[i]
		for j := range candidates {
			if why := candidates[j].placedElsewhere(d); why != "" && slices.ContainsFunc(r.GPUs, d.isNamed) {
				return &api.Error{
					Kind:    api.KindInfeasible,
					Message: fmt.Sprintf("cannot place a lease of %s on %s: %s", tenant, d.name(), why),
					Hint:    placerHint(d.Owner, candidates[j].Placer),
				}
			}
		}
	}
	return nil
}
