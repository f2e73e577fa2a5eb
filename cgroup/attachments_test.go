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

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// foreignCgroup creates cgroups that gpushare does not manage. The test creates them because Attachments does not write.
func foreignCgroup(t *testing.T, below ...string) (h Hierarchy, top string) {
	t.Helper()
	tree := newTree(t)
	h, top = tree.Hierarchy(), path.Join(tree.Top(), "job")
	for _, name := range append([]string{""}, below...) {
		if err := mkdir(h.Dir(path.Join(top, name))); err != nil {
			t.Fatal(err)
		}
	}
	return h, top
}

func attachedScope(id, cg string) Scope {
	return Scope{ID: id, Slice: SliceName{Tenant: "vision", Grant: "train"}, Cgroup: cg}
}

func place(t *testing.T, h Hierarchy, cg string) Process {
	t.Helper()
	p := spawn(t, "sleep", "60")
	if err := h.Place(p, cg); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAttachmentsLifeOfAScope(t *testing.T) {
	h, top := foreignCgroup(t, "step", "step/deep")
	v := NewAttachments(AttachmentsOptions{})
	ctx := within(t, 20*time.Second)
	if _, err := v.StartScope(ctx, attachedScope("l-1", top)); !errors.Is(err, ErrNotFound) {
		t.Fatalf("a scope of an empty cgroup: %v", err)
	}
	for _, bad := range []string{"", "/", "job", top + "/", top + "/..", top + "/nothing"} {
		if _, err := v.StartScope(ctx, attachedScope("l-1", bad)); !errors.Is(err, ErrNotFound) {
			t.Errorf("a scope of cgroup %q: %v", bad, err)
		}
	}
	a, b := place(t, h, top), place(t, h, path.Join(top, "step/deep"))
	st, err := v.StartScope(ctx, attachedScope("l-1", top))
	if want := (ScopeState{ID: "l-1", Path: top}); err != nil || st != want {
		t.Fatalf("state %+v, %v", st, err)
	}
	if again, err := v.StartScope(ctx, attachedScope("l-1", top)); err != nil || again != st {
		t.Errorf("second start: %+v, %v", again, err)
	}
	if _, err := v.StartScope(ctx, attachedScope("l-2", top)); !errors.Is(err, ErrInUse) {
		t.Errorf("another scope of the same cgroup: %v", err)
	}
	members := func(id string) []Process {
		t.Helper()
		ps, err := v.Members(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return ps
	}
	if ps := members("l-1"); len(ps) != 2 || !slices.Contains(ps, a) || !slices.Contains(ps, b) {
		t.Errorf("members %v, want %v and %v", ps, a, b)
	}
	if _, ok := v.ScopeOf(os.Getpid()); ok {
		t.Error("the test process is in a scope")
	}
	// The processes of a nested scope are no members of the outer one.
	if _, err := v.StartScope(ctx, attachedScope("l-2", path.Join(top, "step"))); err != nil {
		t.Fatal(err)
	}
	if id, ok := v.ScopeOf(b.PID); !ok || id != "l-2" {
		t.Errorf("scope of the inner process: %q, %v", id, ok)
	}
	if ps := members("l-1"); !slices.Equal(ps, []Process{a}) {
		t.Errorf("members of the outer one %v, want %v", ps, a)
	}
	if scopes, err := v.Scopes(ctx); err != nil || len(scopes) != 2 {
		t.Errorf("scopes %v, %v", scopes, err)
	}

	if err := v.Freeze(ctx, "l-1"); !errors.Is(err, ErrNotSupported) {
		t.Errorf("freezing an attached scope: %v", err)
	}
	if err := v.KillScope(ctx, "l-1"); !errors.Is(err, ErrNotSupported) {
		t.Errorf("killing an attached scope: %v", err)
	}
	v.Release("l-1")
	if id, ok := v.ScopeOf(a.PID); ok {
		t.Errorf("released, and still in scope %q", id)
	}
	if !procfs.Alive(a.PID, a.Start) || !procfs.Alive(b.PID, b.Start) {
		t.Error("Release ended a process")
	}
	if err := v.KillScope(ctx, "l-1"); err != nil {
		t.Errorf("killing a scope that was released: %v", err)
	}

	// The next run of the daemon finds the scope, as long as it contains a process.
	again := NewAttachments(AttachmentsOptions{})
	if st, err := again.Recover(ctx, attachedScope("l-2", path.Join(top, "step"))); err != nil || st.Path != path.Join(top, "step") {
		t.Errorf("recovering: %+v, %v", st, err)
	}
	if _, err := again.Recover(ctx, attachedScope("l-3", path.Join(top, "nothing"))); !errors.Is(err, ErrNotFound) {
		t.Errorf("recovering a missing cgroup: %v", err)
	}
}

func TestAttachmentsLeaveOutProcessesOfOtherScopes(t *testing.T) {
	h, top := foreignCgroup(t)
	a, b := place(t, h, top), place(t, h, top)
	v := NewAttachments(AttachmentsOptions{InOtherScope: func(pid int) bool { return pid == b.PID }})
	if _, err := v.StartScope(t.Context(), attachedScope("l-1", top)); err != nil {
		t.Fatal(err)
	}
	if ps, err := v.Members(t.Context(), "l-1"); err != nil || !slices.Equal(ps, []Process{a}) {
		t.Errorf("members %v, %v, want %v", ps, err, a)
	}
}

func TestAttachmentsReportTheEnd(t *testing.T) {
	// Well below the polling interval: only a notification makes WaitEmpty return in time.
	const soon = pollInterval / 2
	for name, end := range map[string]func(t *testing.T, v *Attachments, h Hierarchy, top string, p Process){
		"the last process ends": func(t *testing.T, _ *Attachments, _ Hierarchy, _ string, p Process) { kill(t, p) },
		"the last process ends and the cgroup is removed at once": func(t *testing.T, _ *Attachments, h Hierarchy, top string, p Process) {
			kill(t, p)
			if err := h.Remove(top); err != nil {
				t.Error(err)
			}
		},
		"the last process leaves": func(t *testing.T, _ *Attachments, h Hierarchy, _ string, p Process) {
			if err := h.Place(p, "/"); err != nil {
				t.Error(err)
			}
		},
		"the scope is released": func(_ *testing.T, v *Attachments, _ Hierarchy, _ string, _ Process) { v.Release("l-1") },
	} {
		t.Run(name, func(t *testing.T) {
			h, top := foreignCgroup(t, "step")
			p := place(t, h, path.Join(top, "step"))
			v := NewAttachments(AttachmentsOptions{})
			if _, err := v.StartScope(t.Context(), attachedScope("l-1", top)); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := v.WaitEmpty(short, "l-1"); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("waiting for a scope with a process: %v", err)
			}
			done := make(chan error, 2)
			for range cap(done) {
				go func() { done <- v.WaitEmpty(within(t, soon), "l-1") }()
			}
			eventually(t, "both wait", func() bool {
				v.watcher.mu.Lock()
				defer v.watcher.mu.Unlock()
				return len(v.watcher.watches) == cap(done)
			})
			end(t, v, h, top, p)
			for range cap(done) {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			if _, ok := v.ScopeOf(p.PID); ok {
				t.Error("the scope has ended, and its process is still in it")
			}
			v.watcher.mu.Lock()
			defer v.watcher.mu.Unlock()
			if v.watcher.f != nil {
				t.Error("there is no watch, and the descriptor is still open")
			}
		})
	}
}

func TestAttachmentsRecogniseAnotherCgroupOfTheSameName(t *testing.T) {
	h, top := foreignCgroup(t)
	p := place(t, h, top)
	v := NewAttachments(AttachmentsOptions{})
	if _, err := v.StartScope(t.Context(), attachedScope("l-1", top)); err != nil {
		t.Fatal(err)
	}
	kill(t, p)
	if err := h.Remove(top); err != nil {
		t.Fatal(err)
	}
	if err := mkdir(h.Dir(top)); err != nil {
		t.Fatal(err)
	}
	place(t, h, top)
	if ps, err := v.Members(t.Context(), "l-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("members of the next cgroup of this name: %v, %v", ps, err)
	}
	if err := v.WaitEmpty(within(t, time.Second), "l-1"); err != nil {
		t.Error(err)
	}
}

// kill kills a process and waits until it has exited.
func kill(t *testing.T, p Process) {
	t.Helper()
	if err := signal(context.Background(), p, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process has exited", func() bool { return !procfs.Alive(p.PID, p.Start) })
}
