package state

import (
	"maps"
	"reflect"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// ReportedProfiles are the MIG profiles that the driver reports of the GPUs whose MIG mode is on, by their model.
func ReportedProfiles(node *observe.Node) map[string]store.ReportedProfiles {
	out := map[string]store.ReportedProfiles{}
	for i := range node.GPUs {
		if g := &node.GPUs[i]; g.Err == nil && g.MIG.Current && g.Profiles != nil && !g.ProfilesAssumed {
			out[g.Identity.Model] = store.ReportedProfiles{Driver: node.Driver.DriverVersion, Profiles: *g.Profiles}
		}
	}
	return out
}

// RecordProfiles records the MIG profiles of models, for the plans of a GPU whose driver reports none while MIG mode is off. It
// writes only what is new.
func (x *State) RecordProfiles(reported map[string]store.ReportedProfiles) error {
	was := x.Stored().Profiles
	now := maps.Clone(was)
	if now == nil {
		now = map[string]store.ReportedProfiles{}
	}
	for model, r := range reported {
		r.Profiles = onEmptyGPU(r.Profiles)
		now[model] = r
	}
	if len(reported) == 0 || reflect.DeepEqual(was, now) {
		return nil
	}
	return x.Store.Update(func(s *store.State) error {
		s.Profiles = now
		return nil
	})
}

// onEmptyGPU are profiles without what the driver reports only of existing instances.
func onEmptyGPU(p gpu.Profiles) gpu.Profiles {
	p.GI = slices.Clone(p.GI)
	for i := range p.GI {
		p.GI[i].Compute = nil
	}
	return p
}
