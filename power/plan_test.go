package power

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
)

func TestPlan(t *testing.T) {
	const now, earlier = "boot-2/load", "boot-1/load"
	at := func(limit uint64) *gpu.Power {
		return &gpu.Power{Usage: 60_000, Limit: limit, Default: 400_000, Min: 100_000, Max: 400_000}
	}
	for _, c := range []struct {
		name  string
		limit uint64 // the cap
		is    *gpu.Power
		kept  *Before
		to    *Args // nil: no step
		undo  Args
		says  string // of the refusal
	}{
		{name: "nothing is asked for", is: at(350_000)},
		{name: "nothing is asked for and nothing reported"},
		{name: "first", limit: 300_000, is: at(350_000), to: &Args{300_000, &Before{350_000, now}}, undo: Args{Limit: 350_000}},
		{name: "as desired without a record", limit: 300_000, is: at(300_000)},
		{name: "as desired", limit: 300_000, is: at(300_000), kept: &Before{350_000, now}},
		{
			name: "another cap keeps the record", limit: 250_000, is: at(300_000), kept: &Before{350_000, now},
			to: &Args{250_000, &Before{350_000, now}}, undo: Args{300_000, &Before{350_000, now}},
		},
		{
			name: "changed from outside", limit: 300_000, is: at(400_000), kept: &Before{350_000, now},
			to: &Args{300_000, &Before{350_000, now}}, undo: Args{400_000, &Before{350_000, now}},
		},
		{
			name: "a boot made the record void", limit: 300_000, is: at(400_000), kept: &Before{350_000, earlier},
			to: &Args{300_000, &Before{400_000, now}}, undo: Args{Limit: 400_000},
		},
		{name: "restore", is: at(300_000), kept: &Before{350_000, now}, to: &Args{Limit: 350_000}, undo: Args{300_000, &Before{350_000, now}}},
		{name: "restore after a boot", is: at(400_000), kept: &Before{350_000, earlier}, to: &Args{Limit: 400_000}, undo: Args{400_000, &Before{350_000, earlier}}},
		{name: "nothing to restore on a GPU that reports no power", kept: &Before{350_000, now}},

		{name: "no power", limit: 300_000, says: "GPU 0 (A100) does not report its power, so its limit cannot be set"},
		{name: "too low", limit: 99_000, is: at(400_000), says: "99 W is outside of what GPU 0 (A100) can have: 100 W to 400 W"},
		{name: "too high", limit: 400_500, is: at(400_000), says: "400.5 W is outside of what GPU 0 (A100) can have: 100 W to 400 W"},
		{name: "the least", limit: 100_000, is: at(400_000), to: &Args{100_000, &Before{400_000, now}}, undo: Args{Limit: 400_000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := plan(&Target{GPU: "GPU-1", Name: "GPU 0 (A100)", Epoch: now, Cap: c.limit}, c.is, c.kept)
			if c.says != "" {
				if _, ok := errors.AsType[*Infeasible](err); !ok || err.Error() != c.says || s != nil {
					t.Errorf("%v; want %s", err, c.says)
				}
				return
			}
			if err != nil || (s == nil) != (c.to == nil) {
				t.Fatalf("%+v, %v", s, err)
			}
			if s == nil {
				return
			}
			var to, undo Args
			if err := errors.Join(json.Unmarshal(s.Args, &to), json.Unmarshal(s.Undo, &undo)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]Args{*c.to, c.undo}, []Args{to, undo}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if s.Kind != KindLimit || s.GPU != "GPU-1" || s.Text != "set the power limit to "+watts(c.to.Limit) || s.Reason == "" {
				t.Errorf("%+v", s)
			}
		})
	}
}
