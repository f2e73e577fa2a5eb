package state

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mig"
)

// LayoutRequest requests an item of a layout: the profile with its name, or the smallest one with its properties.
func LayoutRequest(item *api.LayoutItem) mig.Request {
	if item.Profile != "" {
		return mig.Request{Name: item.Profile}
	}
	return mig.Request{Slices: item.Slices, Memory: uint64(item.LeastMemory()), Attributes: item.Attributes, Smallest: true}
}

// LayoutRequests requests the items of a layout.
func LayoutRequests(layout []api.LayoutItem) []mig.Request {
	out := make([]mig.Request, len(layout))
	for i := range layout {
		out[i] = LayoutRequest(&layout[i])
	}
	return out
}

// LayoutNames are the items of a layout as a GPU with these profiles names those that are written by properties, and the items
// themselves where that is not known.
func LayoutNames(layout []api.LayoutItem, of *gpu.Profiles) []string {
	var out []string
	for i := range layout {
		name := layout[i].String()
		if layout[i].Profile == "" && of != nil {
			if list, err := mig.Match(*of, LayoutRequest(&layout[i])); err == nil {
				name = list[0].Name
			}
		}
		out = append(out, name)
	}
	return out
}

// SharesInstances reports whether the instances of a profile on a GPU, which has these profiles, are shared through MPS.
func (d *Desired) SharesInstances(id gpu.UUID, of *gpu.Profiles, profile string) bool {
	e := d.GPUs[id]
	if e == nil || e.Mode != api.ModeMIG || e.MIG == nil {
		return false
	}
	return slices.ContainsFunc(e.MIG.MPS, func(item api.LayoutItem) bool {
		if of == nil || item.Profile == profile {
			return item.Profile == profile
		}
		list, err := mig.Match(*of, LayoutRequest(&item))
		return err == nil && slices.ContainsFunc(list, func(p gpu.Profile) bool { return p.Name == profile })
	})
}
