package status

import (
	"context"
	"net/http"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/observe"
)

// GetMIG returns the profiles and placements that each GPU offers, and its instances. With it a caller who may change nothing
// can compute a plan.
func (v *Viewer) GetMIG(c *server.Call) error {
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout)
	defer cancel()
	node, want, use := v.Observer.Observe(ctx), v.State.Desired(), v.Attribution.Usage()
	if node.DriverErr != nil {
		return report.DriverError(node.DriverErr)
	}
	out := api.MIGList{SchemaVersion: 1, GPUs: []api.MIGDevice{}}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.Err != nil || !g.MIG.Capable {
			continue
		}
		e := want.GPUs[g.Identity.UUID]
		if e == nil {
			e = &api.GPUSpec{}
		}
		dev := api.MIGDevice{
			Index:     g.Identity.Index,
			UUID:      string(g.Identity.UUID),
			Model:     g.Identity.Model,
			Mode:      want.Mode(g.Identity.UUID),
			Enabled:   g.MIG.Current,
			Profiles:  []api.MIGProfile{},
			Instances: []api.MIGInstance{},
		}
		if g.Profiles != nil {
			dev.Width, dev.ProfilesAssumed = g.Profiles.Width, g.ProfilesAssumed
			for _, q := range g.Profiles.GI {
				p := api.MIGProfile{
					ID:         q.ID,
					Name:       q.Name,
					Slices:     q.Slices,
					Memory:     q.Memory,
					SMs:        q.SMs,
					Max:        q.Max,
					Attributes: q.Attributes,
					Placements: []api.MIGPlacement{},
				}
				for _, at := range q.Placements {
					p.Placements = append(p.Placements, api.MIGPlacement(at))
				}
				dev.Profiles = append(dev.Profiles, p)
			}
		}
		for _, b := range planner.Present(e, g, use) {
			in := api.MIGInstance{
				ProfileID: b.ProfileID, Profile: g.Profiles.GIName(b.ProfileID), Placement: api.MIGPlacement(b.Placement),
				InUse: b.InUse, Foreign: b.Foreign, Kept: b.Pinned, Compute: []api.MIGPlacement{},
				Imported:     use.Imported != nil && use.Imported(g.Identity.UUID, b.Placement),
				Irreversible: planner.Irreversible(g, b.Instance),
			}
			for _, ci := range b.Compute {
				at := ci.Placement
				at.Size = ci.SliceCount() // Some drivers report no placement.
				in.Compute = append(in.Compute, api.MIGPlacement(at))
			}
			dev.Instances = append(dev.Instances, in)
		}
		out.GPUs = append(out.GPUs, dev)
	}
	return c.Reply(http.StatusOK, out)
}
