package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mig"
)

// needsForce says why only --force destroys an instance; empty: no authority is needed.
func (d *migDevice) needsForce(b *mig.Present) string {
	switch why := d.irreversible[b.Placement]; {
	case b.InUse:
		return "it is in use"
	case b.Foreign:
		return "it is not managed by gpushare"
	case why != "":
		return "it could not be created again, because " + why
	}
	return ""
}

// forced are the reasons of a plan's instances that only --force destroys.
func (t *trial) forced() map[gpu.Placement]string {
	out := map[gpu.Placement]string{}
	for i := range t.plan.Destroy {
		if b := &t.plan.Destroy[i]; t.needsForce(b) != "" {
			out[b.Placement] = t.needsForce(b)
		}
	}
	return out
}

// refuseOneWay refuses a plan without --force that destroys what could not be created again, as the daemon does.
func (t *trial) refuseOneWay() {
	for _, b := range t.plan.Destroy {
		if why := t.irreversible[b.Placement]; why != "" && t.refused == nil {
			err := &mig.NoUndo{Instance: mig.Record(t.grid, []gpu.Instance{b.Instance})[0].String(), Why: why}
			t.refused = &refusedPlan{message: err.Error(), reason: err.Error(), force: true}
		}
	}
}

// forceHints say what leads on from a refusal that --force would lift.
func (t *trial) forceHints() (out []string) {
	if !t.refused.force {
		return nil
	}
	idle := slices.DeleteFunc(slices.Clone(t.refused.blocked), func(b mig.Present) bool { return !b.Foreign || b.InUse })
	if len(idle) > 0 && t.uuid != "" {
		words := []string{"gpushare mig remove", fmt.Sprint(t.index)}
		for _, b := range idle {
			words = append(words, fmt.Sprint(b.Placement.Start))
		}
		out = append(out, fmt.Sprintf("'%s' removes what gpushare does not manage", strings.Join(words, " ")))
	}
	return append(out, "--force plans with what is in the way destroyed, and an apply of it needs --force too")
}
