package mig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// Device is one GPU as it is now.
type Device struct {
	MIG         gpu.MIGState
	Profiles    gpu.Profiles // may be zero while MIG is off: drivers up to branch 550 do not report profiles then
	Assumed     bool         // Profiles are of another source than this driver: they are compared once MIG mode is on
	Present     []Present
	InUseBy     []step.Subject // processes and leases that use the whole GPU
	Unstoppable []step.Subject // those of InUseBy that no authority may stop: while they run, the mode cannot change
}

// Target is what one GPU should be: MIG off, or on with these instances.
type Target struct {
	On       bool
	Requests []Request
}

// PlanDevice plans MIG mode and layout of one GPU together. MIG mode is turned on before instances are created, and
// turned off after all instances are destroyed. There is a plan only when the whole target is feasible.
func PlanDevice(d Device, t Target, o Options) (Result, error) {
	if d.MIG.Capable && d.MIG.Current != t.On && len(d.Unstoppable) != 0 {
		return Result{}, &InUse{On: t.On, By: d.Unstoppable, Unstoppable: true}
	}
	if err := d.MIG.Missing.CanRead(); err != nil && (t.On || d.MIG.Current) {
		return Result{}, fmt.Errorf("cannot plan MIG: %w", err) // Its mode and its instances are not known.
	}
	mode, err := PlanMode(d.MIG, t.On, d.InUseBy, o)
	if foreign := idleForeign(d.Present); !t.On && d.MIG.Current && !o.Force && !o.TakeForeign && len(foreign) != 0 {
		err = foreignBlocks(d.Profiles, foreign) // To remove them needs no authority, so they are named first.
	}
	if err != nil {
		return Result{}, err
	}
	r, err := planDevice(d, t, mode, o)
	if err == nil {
		err = r.Check(d.MIG, o)
	}
	if err != nil {
		return Result{}, err
	}
	return r, nil
}

func planDevice(d Device, t Target, mode *Mode, o Options) (Result, error) {
	switch {
	case !t.On && !d.MIG.Current:
		return Result{Mode: mode}, nil
	case !t.On:
		// No instance outlives MIG mode, so keepable instances are destroyed too.
		all := make([]Present, len(d.Present))
		for i, b := range d.Present {
			b.Keepable, b.Foreign = false, b.Foreign && !o.Force
			all[i] = b
		}
		r, err := Plan(d.Profiles, all, nil, o)
		if err == nil && len(r.Extra) != 0 {
			err = foreignBlocks(d.Profiles, slices.DeleteFunc(all, func(b Present) bool {
				return !slices.ContainsFunc(r.Extra, func(s Placed) bool { return s.Placement == b.Placement })
			}))
		}
		if err != nil {
			return Result{}, err
		}
		r.Mode = mode
		return r, nil
	case !d.MIG.Current && d.Profiles.Width == 0 && len(t.Requests) != 0:
		return Result{}, &UnknownProfiles{}
	}
	present := d.Present
	if !d.MIG.Current {
		present = nil
	}
	r, err := Plan(d.Profiles, present, t.Requests, o)
	if err != nil {
		return Result{}, err
	}
	r.Mode, r.Assumed = mode, d.Assumed
	return r, nil
}

// UnknownProfiles refuses a layout on a GPU whose profiles are known neither from the driver nor from another source.
type UnknownProfiles struct{}

// Error says when the driver reports them.
func (*UnknownProfiles) Error() string {
	return "cannot plan MIG instances: this driver reports the profiles of a GPU only while MIG mode is on, and those of this model are not known"
}

// idleForeign are the foreign instances that no process uses.
func idleForeign(present []Present) []Present {
	return slices.DeleteFunc(slices.Clone(present), func(b Present) bool { return !b.Foreign || b.InUse || b.Pinned })
}

// foreignBlocks is the error for MIG mode that cannot be turned off because of foreign instances.
func foreignBlocks(p gpu.Profiles, foreign []Present) error {
	names := make([]string, len(foreign))
	for i, b := range foreign {
		names[i] = placedOf(p, b.Instance).String()
	}
	return &Infeasible{
		Blocked: foreign,
		Reason:  "MIG mode cannot be turned off: " + strings.Join(names, ", ") + verb(names) + " not managed by gpushare",
	}
}
