package mig

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// reported is a driver that reports these profiles; with an error, none.
type reported struct {
	profiles gpu.Profiles
	err      error
}

func (r reported) Profiles(context.Context, gpu.UUID) (gpu.Profiles, error) {
	return r.profiles, r.err
}

func TestCompare(t *testing.T) {
	driver := func() gpu.Profiles {
		return gpu.Profiles{Width: 8, GI: []gpu.Profile{
			{ID: 9, Name: "3g.20gb", Slices: 3, Max: 2, Placements: []gpu.Placement{{Start: 0, Size: 4}, {Start: 4, Size: 4}}},
		}}
	}
	three := Placed{Name: "3g.20gb", ProfileID: 9, Slices: 3, Placement: gpu.Placement{Start: 4, Size: 4}}
	for _, c := range []struct {
		name   string
		change func(*gpu.Profile)
		placed func(*Placed)
		args   CompareArgs
		off    bool // MIG mode is off: the driver reports none
		differ bool
	}{
		{name: "the same"},
		{name: "another name for the same", change: func(p *gpu.Profile) { p.Name = "3g.21gb" }},
		{name: "another size", change: func(p *gpu.Profile) { p.Name = "3g.40gb" }, differ: true},
		{name: "another size, of a record", change: func(p *gpu.Profile) { p.Name = "3g.40gb" }, args: CompareArgs{ByID: true}},
		{name: "another id", change: func(p *gpu.Profile) { p.ID = 10 }, differ: true},
		{name: "another id, of a record", change: func(p *gpu.Profile) { p.ID = 10 }, args: CompareArgs{ByID: true}, differ: true},
		{name: "other slices", change: func(p *gpu.Profile) { p.Slices = 2 }, differ: true},
		{name: "another placement", change: func(p *gpu.Profile) { p.Placements = p.Placements[:1] }, differ: true},
		{name: "fewer", change: func(p *gpu.Profile) { p.Max = 0 }, differ: true},
		{name: "an attribute", change: func(p *gpu.Profile) { p.Name = "3g.20gb+me" }, differ: true},
		{name: "a record without a name", placed: func(p *Placed) { p.Name, p.Slices = "profile 9", 0 }, args: CompareArgs{ByID: true}},
		{name: "MIG mode is off", off: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, in := driver(), three
			if c.change != nil {
				c.change(&p.GI[0])
			}
			if c.placed != nil {
				c.placed(&in)
			}
			c.args.Create = []Placed{in}
			d := reported{profiles: p}
			if c.off {
				d.err = &gpu.Error{Op: "read the MIG profiles", Err: gpu.ErrNotSupported}
			}
			var got *gpu.Profiles
			h := &CompareHandler{Driver: d, Report: func(_ gpu.UUID, p gpu.Profiles) { got = &p }}
			s := compareStep(c.args)
			applied, err := h.Applied(t.Context(), s)
			if applied != (!c.differ && !c.off) || err != nil {
				t.Errorf("applied: %v, %v", applied, err)
			}
			err = h.Do(t.Context(), s)
			if (err != nil) != (c.differ || c.off) || (got != nil) != c.differ {
				t.Errorf("it is answered with %v and reports %v", err, got)
			}
			if c.differ &&
				!strings.Contains(err.Error(), "the driver does not offer 3g.20gb at 4 (profile id 9); it offers "+p.GI[0].Name) {
				t.Errorf("the reason is %q", err)
			}
		})
	}
}

// Profiles that the driver reports are not compared with themselves, and nothing is where nothing is created.
func TestOnlyAssumedProfilesAreCompared(t *testing.T) {
	on := Device{MIG: gpu.MIGState{Capable: true, Resetless: new(true)}, Profiles: a100(), Assumed: true}
	for _, c := range []struct {
		name   string
		change func(*Device, *Target)
		want   string
	}{
		{"assumed", func(*Device, *Target) {}, "mig.mode mig.compare mig.create"},
		{"reported", func(d *Device, _ *Target) { d.Assumed = false }, "mig.mode mig.create"},
		{"no instance", func(_ *Device, to *Target) { to.Requests = nil }, "mig.mode"},
	} {
		d, to := on, Target{On: true, Requests: Requests("3g.20gb")}
		c.change(&d, &to)
		r, err := PlanDevice(d, to, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, s := range r.Steps("GPU-1") {
			kinds = append(kinds, s.Kind)
		}
		if got := strings.Join(kinds, " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// A record is created again with the compute instances that it has, also where no profile is known.
func TestRestoreAssumed(t *testing.T) {
	at := func(start, size uint32) gpu.Placement { return gpu.Placement{Start: start, Size: size} }
	recorded := []gpu.Instance{
		{ProfileID: 19, Placement: at(4, 1), Compute: []gpu.ComputeInstance{{Placement: at(0, 1)}}},
		{ProfileID: 9, Placement: at(0, 4), Compute: []gpu.ComputeInstance{{Placement: at(0, 1)}, {ID: 1, Placement: at(1, 2)}}},
	}
	p := a100()
	for _, assumed := range []*gpu.Profiles{&p, nil} {
		r := RestoreAssumed(assumed, recorded)
		if len(r.Create) != 2 || r.Create[0].ProfileID != 9 || len(r.Create[0].Compute) != 2 ||
			(len(r.Create[1].Compute) != 0) != (assumed == nil) {
			t.Errorf("with profiles %v: %+v", assumed != nil, r.Create)
		}
		r.Mode = &Mode{On: true}
		steps := r.Steps("GPU-1")
		var a CompareArgs
		if steps[1].Kind != KindCompare || json.Unmarshal(steps[1].Args, &a) != nil || !a.ByID {
			t.Errorf("with profiles %v the steps are %+v", assumed != nil, steps)
		}
		for i, s := range []step.Step{steps[2], steps[3]} {
			var args InstanceArgs
			in := gpu.Instance{ProfileID: r.Create[i].ProfileID, Placement: r.Create[i].Placement, Compute: recorded[1-i].Compute}
			if json.Unmarshal(s.Args, &args) != nil || !args.complete(in) {
				t.Errorf("with profiles %v, %s is not what was recorded", assumed != nil, s.Text)
			}
		}
	}
}
