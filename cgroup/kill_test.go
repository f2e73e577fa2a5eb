package cgroup

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/tracing"
)

// scopeOfProgram starts a scope with a program of the package tracing.
func scopeOfProgram(t *testing.T, tree *Tree, id, program string) tracing.Program {
	t.Helper()
	p := tracing.Run(t, tracing.Command(t, 0, program))
	if _, err := tree.StartScope(t.Context(), train(id, Process{PID: p.PID, Start: p.Start})); err != nil {
		t.Fatal(err)
	}
	return p
}

// The kernel's cgroup.kill sends SIGKILL to the first thread of each process, which does not reach the others when that
// one has exited.
func TestKillReachesAProcessWhoseFirstThreadExited(t *testing.T) {
	tree := newTree(t)
	p := scopeOfProgram(t, tree, "l-1", tracing.FirstThreadExits)
	p.CloseInput()
	tracing.AwaitState(t, p.PID, 'Z')
	if err := tree.KillScope(within(t, 10*time.Second), "l-1"); err != nil {
		t.Fatal(err)
	}
	<-p.Ended
}

// A scope is empty when the kernel says so: threads that exit after the first one are not in cgroup.procs, and still release
// memory and devices.
func TestAKilledScopeIsEmpty(t *testing.T) {
	enumeration.Long(t)
	tree := newTree(t)
	for range 5 {
		p := scopeOfProgram(t, tree, "l-1", tracing.Large)
		scope, err := tree.scope("l-1")
		if err != nil {
			t.Fatal(err)
		}
		if err := tree.h.Kill(within(t, 20*time.Second), scope); err != nil {
			t.Fatal(err)
		}
		if busy, err := tree.h.Populated(scope); busy || err != nil {
			t.Errorf("it was killed, and contains processes: %v, %v", busy, err)
		}
		<-p.Ended
		if err := tree.KillScope(t.Context(), "l-1"); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that its tracer keeps in its exit is still in the scope, and a kill does not wait for it beyond its deadline.
func TestKillOfATracedProcessHasADeadline(t *testing.T) {
	tree := newTree(t)
	p := scopeOfProgram(t, tree, "l-1", tracing.Large)
	tracer := tracing.Run(t, tracing.Command(t, 0, tracing.Trace, p.PID))
	if err := tree.KillScope(within(t, 200*time.Millisecond), "l-1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a process that cannot exit was killed: %v", err)
	}
	if ps, err := tree.Members(t.Context(), "l-1"); err != nil || len(ps) != 1 || ps[0].PID != p.PID {
		t.Errorf("the scope has %v, %v", ps, err)
	}
	if err := signal(context.Background(), Process{PID: tracer.PID, Start: tracer.Start}, 9); err != nil {
		t.Fatal(err)
	}
	if err := tree.KillScope(within(t, 10*time.Second), "l-1"); err != nil {
		t.Fatal(err)
	}
}

// The kernel kills a whole cgroup without asking a security module. One that refuses the signal of this process does not keep a scope
// from ending, but a process that the kernel's signal did not reach keeps it, and other errors end the kill.
func TestKillThatASecurityModuleRefuses(t *testing.T) {
	t.Parallel()
	p := spawn(t, "sleep", "60")
	for name, c := range map[string]struct {
		send error
		ends bool // the kernel's signal reaches it
		want error
	}{
		"the kernel killed it":        {&procfs.RefusedError{PID: p.PID, Profile: "docker-default"}, true, nil},
		"the kernel did not reach it": {&procfs.RefusedError{PID: p.PID, Profile: "docker-default"}, false, context.DeadlineExceeded},
		"another error":               {unix.EPERM, true, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			rounds := 0
			list := func() ([]Process, error) {
				if rounds++; rounds > 1 && c.ends {
					return nil, nil
				}
				if c.ends {
					return []Process{{PID: p.PID, Start: p.Start + 1}}, nil // Its end is near: there is nothing to wait for.
				}
				return []Process{p}, nil
			}
			deadline := 200 * time.Millisecond
			if c.ends {
				deadline = time.Minute
			}
			err := killAll(within(t, deadline), list, killLeft(func(context.Context, Process) error { return c.send }), nil)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("it ends with %v, want %v", err, c.want)
			}
		})
	}
}
