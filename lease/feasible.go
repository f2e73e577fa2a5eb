package lease

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// feasibility is what the GPUs that a grant may use could ever give it.
type feasibility struct {
	usable, free     int      // GPUs, and those of them that an exclusive grant could have
	most             uint64   // memory that a share could have
	lowLatency       *float64 // the most that is left for it on a GPU with the memory, if that is too little; in percent
	offered, notHard []string
	elsewhere        string // the engine that places the leases on a GPU that the grant could use otherwise
}

// feasible returns why the grant can never have a place with this spec, even on an idle node; nil if it can. o has only
// the reservations that cannot move.
func feasible(g *Grant, v *View, o *occupancy) *api.Error {
	if v.DriverUnavailable != "" {
		return nil
	}
	var f feasibility
	for i := range v.GPUs {
		d := &v.GPUs[i]
		if !g.mayUse(d) {
			if g.placedElsewhere(d) != "" {
				f.elsewhere = d.Owner
			}
			continue
		}
		f.usable++
		if f.fits(g, d, o.at(d.UUID)) {
			return nil
		}
	}
	return f.never(g)
}

// fits reports whether the grant could have a place on the GPU, or whether that is not known now.
func (f *feasibility) fits(g *Grant, d *GPUView, t *gpuUsage) bool {
	switch {
	case g.Kind() == api.ModeMIG:
		return f.instanceFits(g, d)
	case g.Kind() == api.ModeExclusive:
		if t.exclusive == nil || t.exclusive.reserved == nil || *t.exclusive.reserved == g.Key() {
			f.free++
		}
		return false
	case g.Spec.InInstance():
		return f.shareOfInstanceFits(g, d)
	}
	return f.shareFits(g, d, t)
}

func (f *feasibility) instanceFits(g *Grant, d *GPUView) bool {
	if d.Closed != "" && len(d.Profiles)+len(d.Instances) == 0 {
		return true // its profiles are not known while its MIG mode is off or it does not answer
	}
	for j := range d.Profiles {
		if g.matches(&d.Profiles[j]) {
			return true
		}
		f.offered = append(f.offered, cmp.Or(d.Profiles[j].Split, d.Profiles[j].Name))
	}
	for j := range d.Instances {
		for p := range d.Instances[j].parts() {
			if g.matches(&p.ProfileView) {
				return true
			}
			f.offered = append(f.offered, cmp.Or(p.Split, p.Name))
		}
	}
	return false
}

func (f *feasibility) shareOfInstanceFits(g *Grant, d *GPUView) bool {
	if d.Closed != "" && len(d.Profiles) == 0 {
		return true // as for a whole instance
	}
	for j := range d.Profiles {
		p := &d.Profiles[j]
		if budget := p.Memory - min(d.Reserve, p.Memory); g.matches(p) {
			if f.offered = append(f.offered, p.Name); g.memory() <= budget {
				return true
			}
			f.most = max(f.most, budget)
		}
	}
	return false
}

func (f *feasibility) shareFits(g *Grant, d *GPUView, t *gpuUsage) bool {
	if g.RequiresHardMemory() && d.NoHardMemory != "" {
		f.notHard = append(f.notHard, fmt.Sprintf("%s: %s", d.name(), d.NoHardMemory))
		return false
	}
	if d.Closed != "" && d.Capacity == 0 {
		return true // its memory is not known: it did not answer since the daemon started
	}
	memory, share := t.granted(g.Key(), true)
	if d.Overcommit || memory+g.memory() <= d.budget() && (g.Kind() != api.ModeMPS || share+g.percent() <= fullShare) {
		left := t.lowLatencyLeft(g.Key(), true)
		if g.fitsLowLatency(left) {
			return true
		}
		if f.lowLatency == nil || left > *f.lowLatency {
			f.lowLatency = &left
		}
		return false
	}
	f.most = max(f.most, d.budget()-min(memory, d.budget()))
	return false
}

// never is why no GPU fits.
func (f *feasibility) never(g *Grant) *api.Error {
	never := func(hint, format string, args ...any) *api.Error {
		return &api.Error{
			Kind: api.KindInfeasible, Hint: hint,
			Message: fmt.Sprintf("cannot ever place grant %s of %s: ", g.Spec.Name, g.Tenant) + fmt.Sprintf(format, args...),
		}
	}
	switch {
	case f.usable == 0 && f.elsewhere != "":
		return never(placerHint(f.elsewhere, g.Placer), "%s places the leases on the GPUs that it may use", f.elsewhere)
	case f.usable == 0 && g.Spec.GPUs != nil:
		return never(
			"ask the administrator to change the grant's gpus or the mode of those GPUs",
			"none of the GPUs in its selector is in mode %s", g.Spec.Mode(),
		)
	case f.usable == 0:
		return never("ask the administrator for a GPU in that mode", "no GPU is in mode %s", g.Spec.Mode())
	case g.Spec.InInstance() && len(f.offered) == 0:
		return never(
			"ask the administrator to share such instances (mig.mps)",
			"no GPU that it may use has a %s instance with MPS in its layout", g.requirement(),
		)
	case g.Spec.InInstance():
		return never(
			"the most that it can have is "+api.Bytes(f.most).Short(), "%s of memory is more than a %s instance has after the reserve",
			api.Bytes(g.memory()).Short(), g.requirement(),
		)
	case g.Kind() == api.ModeMIG:
		slices.Sort(f.offered)
		f.offered = slices.Compact(f.offered)
		if len(f.offered) == 0 {
			return never("", "no GPU that it may use has a %s instance in its layout", g.requirement())
		}
		return never(
			"the layouts have "+strings.Join(f.offered, ", "), "no GPU that it may use has a %s instance in its layout", g.requirement(),
		)
	case g.Kind() == api.ModeExclusive:
		if f.free >= g.Spec.Exclusive {
			return nil
		}
		return never("ask for fewer GPUs", "%d exclusive GPUs are requested, and %d can be granted", g.Spec.Exclusive, f.free)
	case len(f.notHard) == f.usable:
		return never(
			"with accept: best-effort it would have a weaker limit", "its limit of GPU memory must be hard, and would not be: %s",
			strings.Join(f.notHard, "; "),
		)
	case f.lowLatency != nil:
		return never(
			"ask the administrator for a smaller share, or for the grant without latency: low",
			"no GPU that it may use has the %s that it needs: the reserved grants leave %s",
			percentText(g.lowLatency()),
			lowLatencyText(*f.lowLatency),
		)
	case g.memory() > f.most:
		return never(
			"the most that it can have is "+api.Bytes(f.most).Short(),
			"%s of memory on one GPU is more than the reserve and the reserved grants leave", api.Bytes(g.memory()).Short(),
		)
	}
	return never(
		"ask the administrator for a smaller share", "%s of the threads is more than the reserved grants leave",
		percentText(g.percent()),
	)
}
