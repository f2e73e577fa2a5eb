package engine_test

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// explaining is the fake node with the reasons of the steps of MIG.
type explaining struct{ *fakeNode }

func (explaining) NotThere(step.Step) string {
	return (&mig.Handler{}).NotThere(step.Step{Kind: mig.KindDestroy})
}

// A step whose call succeeded, and which another program undid since, is not called a call that changed nothing.
func TestAStepThatAnotherProgramUndid(t *testing.T) {
	w := newFakeNode("A", "B")
	w.lying["A/hw1"] = true // As if another program had restored it at once.
	e := w.engine()
	for kind := range e.Handlers {
		e.Handlers[kind] = explaining{w}
	}
	out := e.Run(t.Context(), change(), engine.Hooks{})
	if got := out["A"].Reason; !strings.Contains(got, "another program created it again") || strings.Contains(got, "nothing has changed") {
		t.Errorf("the reason is %q", got)
	}
}
