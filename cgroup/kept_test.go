package cgroup

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func keptScope(id string, cgs ...string) Scope {
	s := attachedScope(id, cgs[0])
	s.Kept, s.Further = true, cgs[1:]
	return s
}

// A scope that is kept needs no process and no cgroup, has what comes into any of its cgroups, and ends when it is released.
func TestKeptScope(t *testing.T) {
	h, top := foreignCgroup(t, "one")
	v := NewAttachments(AttachmentsOptions{})
	ctx := within(t, 60*time.Second)
	one, two := path.Join(top, "one"), path.Join(top, "two")
	if _, err := v.StartScope(ctx, keptScope("l-1", one, two)); err != nil {
		t.Fatal(err)
	}
	if _, err := v.StartScope(ctx, keptScope("l-2", two)); !errors.Is(err, ErrInUse) {
		t.Errorf("another scope has one of its cgroups: %v", err)
	}
	if ps, err := v.Members(ctx, "l-1"); err != nil || len(ps) != 0 {
		t.Errorf("without processes its members are %v: %v", ps, err)
	}
	if ok, err := v.Await(ctx, "l-1", true, time.Millisecond); ok || err != nil {
		t.Errorf("without processes it is populated: %v, %v", ok, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- v.WaitEmpty(ctx, "l-1") }()
	for range 2 { // The second cgroup is removed and made again.
		if err := mkdir(h.Dir(two)); err != nil {
			t.Fatal(err)
		}
		p := place(t, h, two)
		if ok, err := v.Await(ctx, "l-1", true, time.Minute); !ok || err != nil {
			t.Fatalf("with a process it is not populated: %v, %v", ok, err)
		}
		if id, ok := v.ScopeOf(p.PID); !ok || id != "l-1" {
			t.Errorf("the process is in scope %q", id)
		}
		if ps, err := v.Members(ctx, "l-1"); err != nil || !slices.Equal(ps, []Process{p}) {
			t.Errorf("its members are %v: %v", ps, err)
		}
		if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if ok, err := v.Await(ctx, "l-1", false, time.Minute); !ok || err != nil {
			t.Fatalf("without a process it is populated: %v, %v", ok, err)
		}
		eventually(t, "its cgroup is not removed", func() bool { return os.Remove(h.Dir(two)) == nil })
	}
	// With other cgroups who waits for its processes looks again, and who waits for its end goes on.
	replaced := make(chan error, 1)
	go func() {
		_, err := v.Await(ctx, "l-1", true, time.Minute)
		replaced <- err
	}()
	if _, err := v.StartScope(ctx, keptScope("l-1", one)); err != nil {
		t.Fatal(err)
	}
	if _, err := v.StartScope(ctx, keptScope("l-2", two)); err != nil {
		t.Errorf("a cgroup that it has no more is not free: %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("it has ended with its cgroups: %v", err)
	default:
	}
	v.Release("l-1")
	if err := <-replaced; err != nil && !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := v.Await(ctx, "l-1", true, time.Minute); !errors.Is(err, ErrNotFound) {
		t.Errorf("a scope that was released is waited for: %v", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := v.Await(done, "l-2", true, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait whose context has ended: %v", err)
	}
}
