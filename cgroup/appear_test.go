package cgroup

import (
	"context"
	"errors"
	"path"
	"testing"
	"time"
)

// A cgroup is waited for that is not there yet, nor its parents, and that is empty when it comes.
func TestWaitPopulated(t *testing.T) {
	h, top := foreignCgroup(t)
	ctx := within(t, 60*time.Second)
	cg := path.Join(top, "scope/job/step")
	done := make(chan error, 1)
	go func() { done <- h.WaitPopulated(ctx, path.Join(top, "scope/job")) }()
	for _, below := range []string{"scope", "scope/job", "scope/job/step"} {
		if err := mkdir(h.Dir(path.Join(top, below))); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("%s is there without a process, and the wait ends: %v", below, err)
		default:
		}
	}
	place(t, h, cg)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := h.WaitPopulated(ctx, path.Join(top, "scope")); err != nil {
		t.Errorf("one that has a process already: %v", err)
	}
}

// The wait ends with its context, also where nothing of the path is there.
func TestWaitPopulatedEndsWithItsContext(t *testing.T) {
	h, top := foreignCgroup(t)
	ctx, cancel := context.WithCancel(within(t, 60*time.Second))
	done := make(chan error, 1)
	go func() { done <- h.WaitPopulated(ctx, path.Join(top, "none/at/all")) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}

// Many waits have a few descriptors together, which others get when a wait ends; the waits without one end too.
func TestWaitsShareFewDescriptors(t *testing.T) {
	ctx := within(t, 60*time.Second)
	var all []*appearance
	with := func() (n int) {
		for _, a := range all {
			if a.f != nil {
				n++
			}
		}
		return n
	}
	for range 2 * mostAppearances {
		all = append(all, newAppearance(ctx))
	}
	if n := with(); n == 0 || n > mostAppearances {
		t.Errorf("%d of %d waits have a descriptor, want at most %d", n, len(all), mostAppearances)
	}
	for _, a := range all {
		a.close()
	}
	all = []*appearance{newAppearance(ctx)}
	if with() != 1 {
		t.Error("a wait after the others has no descriptor")
	}
	all[0].close()
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := (&appearance{}).wait(over); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait without a descriptor ends with %v", err)
	}
}
