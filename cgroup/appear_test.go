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
