package mig

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// Device is one GPU as it is now.
type Device struct {
	MIG         gpu.MIGState
	Profiles    gpu.Profiles // may be zero where MIG is off and the driver then does not tell
	Present     []Present
	InUseBy     []step.Subject // who runs on the GPU as a whole
	Unstoppable []step.Subject // those of them that no authority stops: the mode cannot change beside them
}

// Target is what one GPU should be: MIG off, or on with these instances.
type Target struct {
	On       bool
	Requests []Request
}

// PlanDevice plans MIG mode and layout of one GPU together: turned on before its instances are made, and turned off
// after all of them are gone. Feasibility of the whole is shown before anything of it is planned.
func PlanDevice(d Device, t Target, o Options) (Result, error) {
	if d.MIG.Capable && d.MIG.Current != t.On && len(d.Unstoppable) != 0 {
		return Result{}, &InUse{On: t.On, By: d.Unstoppable, Unstoppable: true}
	}
	mode, err := PlanMode(d.MIG, t.On, d.InUseBy, o)
	if err != nil {
		return Result{}, err
	}
	switch {
	case !t.On && !d.MIG.Current:
		return Result{Mode: mode}, nil
	case !t.On:
		// Nothing outlives MIG mode, so what may stay otherwise must go too.
		all := make([]Present, len(d.Present))
		for i, b := range d.Present {
			b.Keepable = false
			all[i] = b
		}
		r, err := Plan(d.Profiles, all, nil, o)
		if err == nil && len(r.Extra) != 0 {
			err = foreignBlocks(all, r)
		}
		if err != nil {
			return Result{}, err
		}
		r.Mode = mode
		return r, nil
	case !d.MIG.Current && d.Profiles.Width == 0 && len(t.Requests) != 0:
		return Result{}, errors.New("cannot plan MIG instances: this driver tells the profiles of a GPU only while MIG mode is on; turn it on with an empty layout first")
	}
	present := d.Present
	if !d.MIG.Current {
		present = nil
	}
	r, err := Plan(d.Profiles, present, t.Requests, o)
	if err != nil {
		return Result{}, err
	}
	r.Mode = mode
	return r, nil
}

// foreignBlocks refuses to turn MIG off over instances that may not be taken.
func foreignBlocks(present []Present, r Result) error {
	e := &Infeasible{}
	for _, b := range present {
		if slices.ContainsFunc(r.Extra, func(s Placed) bool { return s.Placement == b.Placement }) {
			e.Blocked = append(e.Blocked, b)
		}
	}
	var names []string
	for _, s := range r.Extra {
		names = append(names, s.String())
	}
	e.Reason = fmt.Sprintf("MIG mode cannot be turned off while there%s %s, not made by this configuration", verb(names), strings.Join(names, ", "))
	return e
}
