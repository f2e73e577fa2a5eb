package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mig"
)

// migDevice is a GPU to plan for: one of this node, or a built-in board.
type migDevice struct {
	model      string // short name of a board
	uuid       string // of a GPU
	index      int
	name       string // as the driver reports it
	enabled    bool
	grid       gpu.Profiles
	present    []mig.Present
	unverified []string
	assumed    bool // the profiles are not those that the driver reports
	// irreversible is why an instance could not be created again, for those that could not.
	irreversible map[gpu.Placement]string
}

// title is the headline of its output.
func (d *migDevice) title() string {
	s := d.name
	if d.uuid != "" {
		s = fmt.Sprintf("GPU %d, %s", d.index, s)
	}
	if d.grid.Width > 0 {
		s += fmt.Sprintf(", %d memory slices", d.grid.Width)
	}
	return s
}

// migDevices queries the GPUs with MIG from the daemon.
func (a *app) migDevices(ctx context.Context) ([]migDevice, error) {
	list, err := a.client.MIG(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]migDevice, len(list.GPUs))
	for i := range list.GPUs {
		g := &list.GPUs[i]
		d := migDevice{
			uuid:         g.UUID,
			index:        g.Index,
			name:         g.Model,
			enabled:      g.Enabled,
			grid:         gpu.Profiles{Width: g.Width},
			assumed:      g.ProfilesAssumed,
			irreversible: map[gpu.Placement]string{},
		}
		for _, p := range g.Profiles {
			q := gpu.Profile{ID: p.ID, Name: p.Name, Slices: p.Slices, Memory: p.Memory, SMs: p.SMs, Max: p.Max, Attributes: p.Attributes}
			for _, at := range p.Placements {
				q.Placements = append(q.Placements, gpu.Placement(at))
			}
			d.grid.GI = append(d.grid.GI, q)
		}
		for _, in := range g.Instances {
			b := mig.Present{
				Instance: gpu.Instance{ProfileID: in.ProfileID, Placement: gpu.Placement(in.Placement)},
				InUse:    in.InUse,
				Foreign:  in.Foreign,
				Pinned:   in.Kept,
				Keepable: in.Imported,
			}
			if in.Irreversible != "" {
				d.irreversible[b.Placement] = in.Irreversible
			}
			for j, ci := range in.Compute {
				b.Compute = append(b.Compute, gpu.ComputeInstance{ID: uint32(j), Placement: gpu.Placement(ci)})
			}
			d.present = append(d.present, b)
		}
		out[i] = d
	}
	return out, nil
}

// migDevice queries one GPU from the daemon, by index or UUID.
func (a *app) migDevice(ctx context.Context, name string) (*migDevice, error) {
	all, err := a.migDevices(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = all[i].uuid
	}
	id := name
	if shortUUIDLike(name) {
		if id, err = beginsWith("GPU", name, ids); err != nil {
			return nil, err
		}
	}
	i := slices.IndexFunc(all, func(d migDevice) bool { return d.uuid == id || strconv.Itoa(d.index) == id })
	if i >= 0 {
		return &all[i], nil
	}
	var known []string
	for _, d := range all {
		known = append(known, strconv.Itoa(d.index))
	}
	e := &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("cannot find a GPU with MIG that is %s", name),
		Hint:    "no GPU of this node has MIG",
	}
	if len(known) > 0 {
		e.Hint = "GPUs with MIG: " + strings.Join(known, ", ")
	}
	return nil, e
}

// boardDevice is a built-in board with the given instances.
func boardDevice(model string, have instances) (*migDevice, error) {
	b, err := findBoard(model)
	if err != nil {
		return nil, err
	}
	d := &migDevice{model: b.Short, name: b.Name, enabled: true, grid: b.GPUProfiles(), unverified: b.Unverified}
	if d.present, err = have.have(d.grid); err != nil {
		return nil, d.misread(err)
	}
	return d, nil
}

// misread is a usage error about instances.
func (d *migDevice) misread(err error) error {
	e := usageError{err: err, hint: "'gpushare mig profiles' lists the possible instances"}
	if d.model != "" {
		e.hint = fmt.Sprintf("'gpushare mig profiles --model %s' lists the possible instances", d.model)
	}
	return e
}
