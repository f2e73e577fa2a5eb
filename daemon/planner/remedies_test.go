package planner

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// The hint of a refusal has one command that leads on, with the authority that the refused command had already.
func TestHintsOfRefusals(t *testing.T) {
	foreign := func(start uint32) mig.Present {
		return mig.Present{Instance: observetest.Instance(19, start), Foreign: true}
	}
	busy := mig.Present{Instance: observetest.Instance(19, 2), InUse: true, InUseBy: []step.Subject{step.ProcessOf(812, "python")}}
	yes, no := func(gpu.UUID) bool { return true }, func(gpu.UUID) bool { return false }
	for _, c := range []struct {
		name    string
		err     error
		had     Authority
		removes func(gpu.UUID) bool
		want    string // empty: no hint
	}{
		{"foreign ones", &mig.Infeasible{Blocked: []mig.Present{foreign(0), foreign(4)}}, Authority{}, yes, "'gpushare mig remove 1 0 4' removes"},
		{"foreign ones of a GPU that is not managed", &mig.Infeasible{Blocked: []mig.Present{foreign(0)}}, Authority{AllowReset: true}, no, "'gpushare gpu retry 1 --allow-reset --force' removes"},
		{"a foreign one, and one in use", &mig.Infeasible{Blocked: []mig.Present{busy, foreign(0)}}, Authority{}, yes, "'gpushare mig remove 1 0' removes"},
		{"one in use", &mig.Infeasible{Blocked: []mig.Present{busy}}, Authority{}, yes, "wait until they end, or 'gpushare gpu retry 1 --force' stops"},
		{"one that nothing may stop", &mig.Infeasible{Pinned: []mig.Present{busy}}, Authority{}, yes, WaitForUsers},
		{"no such placement", &mig.Infeasible{}, Authority{}, yes, ""},
		{"a reset", &mig.ResetRequired{On: true}, Authority{Force: true}, yes, "'gpushare gpu retry 1 --allow-reset --force' lets"},
		{"use and a reset", &mig.InUse{Reset: true}, Authority{}, yes, "wait until they end, or 'gpushare gpu retry 1 --allow-reset --force' stops"},
		{"use", &mig.InUse{}, Authority{AllowReset: true}, yes, "wait until they end, or 'gpushare gpu retry 1 --allow-reset --force' stops"},
		{"use that nothing may stop", &mig.InUse{Unstoppable: true, Reset: true}, Authority{}, yes, WaitForUsers},
		{"what no undo could create again", &mig.NoUndo{}, Authority{AllowReset: true}, yes, "'gpushare gpu retry 1 --allow-reset --force' destroys"},
		{"a lost GPU", gpu.ErrLost, Authority{}, yes, "'gpushare gpu retry 1' tries it again"},
	} {
		r := Remedies{
			Node:    &observe.Node{GPUs: []observe.GPU{observetest.Device(true)}},
			Command: "gpushare gpu retry 1",
			Had:     c.had,
			Removes: c.removes,
		}
		got := r.hint(observetest.One, c.err)
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: the hint is %q, want %q", c.name, got, c.want)
		}
	}
}
