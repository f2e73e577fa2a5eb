package cgroup

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/tracing"
)

// A thread whose execve waits for a sibling that is traced keeps the kernel from reporting the cgroup as frozen. It counts as frozen
// all the same, because no thread of it runs.
func TestFreezeWhileAnExecWaitsForATracedThread(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	p := scopeOfProgram(t, tree, "l-1", tracing.ExecOnInput)
	scope, err := tree.scope("l-1")
	if err != nil {
		t.Fatal(err)
	}
	leaf := scope + "/" + inner
	loop := spawn(t, "sh", "-c", "while :; do :; done")
	if err := tree.h.Place(loop, leaf); err != nil {
		t.Fatal(err)
	}
	tracer := tracing.Run(t, tracing.Command(t, 0, tracing.Trace, tracing.Others(t, p.PID)...))
	p.CloseInput()
	tracing.AwaitState(t, p.PID, 'D')

	eventually(t, "the loop runs", func() bool { r, err := tree.h.firstRunning(leaf); return err == nil && r != nil })
	if r, err := tree.h.firstRunning(leaf); err != nil || r == nil || r.tid != loop.PID {
		t.Errorf("the loop is pid %d, and what runs is %v, %v", loop.PID, r, err)
	}
	if frozen, err := tree.Frozen("l-1"); err != nil || frozen {
		t.Errorf("before it is frozen: %v, %v", frozen, err)
	}
	for range 3 {
		began := time.Now()
		if err := tree.Freeze(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		t.Logf("frozen in %v", time.Since(began))
		if v, err := readEvent(tree.h.Dir(leaf), "frozen"); err != nil || v != "0" {
			t.Errorf("the kernel reports frozen %s, %v: this test has no meaning", v, err)
		}
		if frozen, err := tree.Frozen("l-1"); err != nil || !frozen {
			t.Errorf("it is frozen: %v, %v", frozen, err)
		}
		before, err := tree.h.Stat(leaf)
		if err != nil {
			t.Fatal(err)
		}
		pause(30 * time.Millisecond) // a running loop would use it
		after, err := tree.h.Stat(leaf)
		if err != nil {
			t.Fatal(err)
		}
		if used := after.CPU - before.CPU; used > 3*time.Millisecond {
			t.Errorf("while it is frozen it used %v of a processor", used)
		}
		if err := tree.Thaw(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		if frozen, err := tree.Frozen("l-1"); err != nil || frozen {
			t.Errorf("after the thaw it is frozen: %v, %v", frozen, err)
		}
	}
	// The thread that waits returns to no program either when what it waits for happens.
	if err := tree.Freeze(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	if err := signal(Process{PID: tracer.PID, Start: tracer.Start}, 9); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel reports it as frozen", func() bool {
		v, err := readEvent(tree.h.Dir(leaf), "frozen")
		return err == nil && v == "1"
	})
}

// A process that runs in calls of the kernel that only SIGKILL interrupts is frozen: its program does not run.
func TestFreezeOfAProcessThatRunsInTheKernel(t *testing.T) {
	tree := newTree(t)
	scopeOfProgram(t, tree, "l-1", tracing.Populates)
	for range 5 {
		began := time.Now()
		if err := tree.Freeze(within(t, 10*time.Second), "l-1"); err != nil {
			t.Fatal(err)
		}
		t.Logf("frozen in %v", time.Since(began))
		if err := tree.Thaw(within(t, 10*time.Second), "l-1"); err != nil {
			t.Fatal(err)
		}
	}
}

// A program that runs is found, whatever the file cgroup.freeze says.
func TestAProgramThatRunsIsNotFrozen(t *testing.T) {
	tree := newTree(t)
	loop := spawn(t, "sh", "-c", "while :; do :; done")
	st, err := tree.StartScope(t.Context(), train("l-1", loop))
	if err != nil {
		t.Fatal(err)
	}
	files, err := openFreezeFiles(tree.h.Dir(st.Path))
	if err != nil {
		t.Fatal(err)
	}
	defer files.close()
	check := stillness{h: tree.h, cg: st.Path}
	err = files.waitFor(within(t, 500*time.Millisecond), st.Path, true, check.moves)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), " (sh) runs") {
		t.Errorf("a loop that was not frozen: %v", err)
	}
}
