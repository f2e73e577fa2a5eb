package cgroup

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

func TestProcessesKeepsAnObservedOrphan(t *testing.T) {
	port := NewProcesses("a test")
	ctx := within(t, 20*time.Second)
	// The shell exits when its pipe closes, and init becomes the parent of its child.
	p, release := spawnWaiting(t, "sleep 60 & exec sleep 0.3")
	if _, err := port.StartScope(ctx, train("l-1", p)); err != nil {
		t.Fatal(err)
	}
	release()
	var orphan Process
	eventually(t, "the child is a member", func() bool {
		ps, err := port.Members(ctx, "l-1")
		i := slices.IndexFunc(ps, func(m Process) bool { return m.PID != p.PID })
		if err == nil && i >= 0 {
			orphan = ps[i]
		}
		return i >= 0
	})
	eventually(t, "the parent has ended", func() bool { return !procfs.Alive(p.PID, p.Start) })
	ps, err := port.Members(ctx, "l-1")
	if err != nil || !slices.Equal(ps, []Process{orphan}) {
		t.Fatalf("members %v, %v; want the orphan %v", ps, err, orphan)
	}
	if id, ok := port.ScopeOf(orphan.PID); !ok || id != "l-1" {
		t.Errorf("the orphan's scope is %q, %v", id, ok)
	}
	if err := port.KillScope(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	if procfs.Alive(orphan.PID, orphan.Start) {
		t.Error("the orphan lives")
	}
}

func TestProcessesRecovers(t *testing.T) {
	ctx := within(t, 20*time.Second)
	p := spawn(t, "sleep", "60")
	port := NewProcesses("a test")
	if _, err := port.Recover(ctx, train("l-1", p)); err != nil {
		t.Fatal(err)
	}
	if id, ok := port.ScopeOf(p.PID); !ok || id != "l-1" {
		t.Errorf("scope %q, %v", id, ok)
	}
	if err := port.KillScope(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := port.Recover(ctx, train("l-1", p)); !errors.Is(err, ErrNotFound) {
		t.Errorf("recovering a command that has exited: %v", err)
	}
}

func TestProcessesScopeInAScope(t *testing.T) {
	ctx := within(t, 20*time.Second)
	port := NewProcesses("a test")
	outer, release := spawnWaiting(t, "sleep 60 & wait")
	if _, err := port.StartScope(ctx, train("l-1", outer)); err != nil {
		t.Fatal(err)
	}
	release()
	var child Process
	eventually(t, "the shell has a child", func() bool {
		ps, err := port.Members(ctx, "l-1")
		for _, m := range ps {
			if m != outer && procfs.Command(t.Context(), m.PID) == "sleep 60" {
				child = m
			}
		}
		return err == nil && child.PID != 0
	})
	if _, err := port.StartScope(ctx, train("l-2", child)); err != nil {
		t.Fatal(err)
	}
	if id, ok := port.ScopeOf(child.PID); !ok || id != "l-2" {
		t.Errorf("scope of the inner command: %q, %v", id, ok)
	}
	if err := port.KillScope(ctx, "l-2"); err != nil {
		t.Fatal(err)
	}
}

func TestProcessesDoesNotFreeze(t *testing.T) {
	port := NewProcesses("a test")
	if err := port.Freeze(t.Context(), "l-1"); !errors.Is(err, ErrNotSupported) {
		t.Errorf("freeze: %v", err)
	}
	if err := port.Thaw(t.Context(), "l-1"); err != nil {
		t.Errorf("thaw: %v", err)
	}
	if i := port.Info(); i.Freeze || i.Devices || len(i.Limits) > 0 || i.Adapter != "processes" {
		t.Errorf("info %+v", i)
	}
}
