package publish

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/gpushare/api"
)

// counterUse is what a device takes of one set of counters.
type counterUse struct {
	set  string
	uses map[string]int64
}

// counters are what instances of one GPU share, so that the scheduler grants only what can exist together: each memory slice, and what
// the driver limits besides: instances of a profile, those with the attribute me, and all media engines in one instance (me.all), next to
// which only instances without any (-me) exist.
type counters struct {
	d     *api.MIGDevice
	maxMe int64
}

func countersOf(d *api.MIGDevice) counters {
	c := counters{d: d, maxMe: 1}
	for i := range d.Profiles {
		if p := &d.Profiles[i]; slices.Contains(p.Attributes, "me") {
			c.maxMe = max(c.maxMe, int64(p.Max))
		}
	}
	return c
}

func sliceName(i uint32) string { return "slice-" + strconv.FormatUint(uint64(i), 10) }

// limited reports whether the driver allows fewer instances of a profile than it has placements.
func limited(p *api.MIGProfile) bool { return p.Max != 0 && int(p.Max) < len(p.Placements) }

// all is what an empty GPU has.
func (c counters) all() map[string]int64 {
	out := map[string]int64{}
	for i := range c.d.Width {
		out[sliceName(i)] = 1
	}
	for i := range c.d.Profiles {
		p := &c.d.Profiles[i]
		if limited(p) {
			out["max-"+nameOf(p.Name)] = int64(p.Max)
		}
		if slices.Contains(p.Attributes, "me") {
			out["me"] = c.maxMe
		}
		if slices.Contains(p.Attributes, "me.all") {
			out["media"] = int64(c.d.Width)
		}
	}
	return out
}

// uses is what an instance takes.
func (c counters) uses(p *api.MIGProfile, at api.MIGPlacement) map[string]int64 {
	out := map[string]int64{}
	for i := at.Start; i < at.Start+at.Size; i++ {
		out[sliceName(i)] = 1
	}
	if limited(p) {
		out["max-"+nameOf(p.Name)] = 1
	}
	all := c.all()
	if slices.Contains(p.Attributes, "me") {
		out["me"] = 1
	}
	if media, ok := all["media"]; ok {
		switch {
		case slices.Contains(p.Attributes, "me.all"):
			out["media"] = media
		case !slices.Contains(p.Attributes, "-me"):
			out["media"] = 1
		}
	}
	return out
}

// left is what claims may have of a GPU: not what the instances of others take.
func (n *Node) left(g *api.GPUStatus, d *api.MIGDevice) map[string]int64 {
	c := countersOf(d)
	out := c.all()
	for i := range d.Instances {
		in := &d.Instances[i]
		j := slices.IndexFunc(d.Profiles, func(p api.MIGProfile) bool { return p.ID == in.ProfileID })
		if j < 0 || n.taken(g, in) == "" {
			continue
		}
		for name, used := range c.uses(&d.Profiles[j], in.Placement) {
			out[name] = max(out[name]-used, 0)
		}
	}
	return out
}

// limitCounter counts the leases of a grant.
const limitCounter = "leases"

// limitSet is the name of the counters of grants: of one its name, of several a sum of their names, because a name of the API is short.
func limitSet(grants []*api.GrantSpec) string {
	if len(grants) == 1 {
		return "grant-" + grants[0].Name
	}
	h := fnv.New64a()
	for _, g := range grants {
		h.Write([]byte(g.Name + "\n"))
	}
	return fmt.Sprintf("grants-%016x", h.Sum64())
}

// limitedBy makes the leases of the grants that give a device a counter: the scheduler grants no more of them than the grants have. Of
// whole GPUs they are the grants of one, because the scheduler does not say for which claim it counts.
func (o *Offer) limitedBy(n *Node, grants []*api.GrantSpec) {
	sum := 0
	for _, spec := range grants {
		sum += n.leasesLeft(spec)
	}
	set := limitSet(grants)
	o.limits = map[string]int64{set: int64(sum)}
	o.counters = append(o.counters, counterUse{set, map[string]int64{limitCounter: 1}})
}

// leasesLeft is how many leases of a grant claims may have.
func (n *Node) leasesLeft(spec *api.GrantSpec) int {
	most := 1 // of MIG and whole GPUs, unless the spec says more
	if spec.MaxLeases != nil {
		most = max(*spec.MaxLeases, 1)
	}
	for i := range n.Status.Leases {
		if l := &n.Status.Leases[i]; l.Tenant == n.Tenant.Name && l.Grant == spec.Name && l.State != api.LeaseQueued && !ofClaims(l) {
			most--
		}
	}
	return max(most, 0)
}

func counterValues(of map[string]int64) map[string]resourceapi.Counter {
	out := make(map[string]resourceapi.Counter, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		out[name] = resourceapi.Counter{Value: *resource.NewQuantity(of[name], resource.DecimalSI)}
	}
	return out
}
