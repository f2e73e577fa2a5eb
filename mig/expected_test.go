package mig

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

// The expected result of a plan is what the GPU shows afterwards.
func TestAfterMatchesSnapshot(t *testing.T) {
	all := states(a100())
	rapid.Check(t, func(rt *rapid.T) {
		p := a100()
		present := presentOf(p, idle(rapid.SampledFrom(all).Draw(rt, "present")))
		m := map[int]int{}
		for _, x := range rapid.SampledFrom(all).Draw(rt, "target") {
			m[x.profile]++
		}
		r, err := Plan(p, present, requestsFor(p, m), Options{})
		if err != nil {
			rt.Fatal(err)
		}
		steps := reread(t, r.Steps("GPU-1"))
		f := newFake(p, present)
		was := append([]gpu.Instance(nil), f.instances...)
		if err := apply(t, &Handler{Driver: f}, steps); err != nil {
			rt.Fatal(err)
		}
		on, now, err := After(true, was, steps)
		if got, want := Record(p, now), f.layout(); err != nil || !on || !SameLayout(got, want) {
			rt.Fatalf("expected %v, MIG %v, %v; observed %v", got, on, err, want)
		}
	})
}

func TestAfterModeOffIsEmpty(t *testing.T) {
	p := a100()
	steps := reread(t, Result{Mode: &Mode{Was: true}}.Steps("GPU-1"))
	if on, now, err := After(true, []gpu.Instance{presentFrom(t, p, "3g.20gb@0")[0].Instance}, steps); on || now != nil || err != nil {
		t.Errorf("MIG %v, %v, %v", on, now, err)
	}
}
