package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
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
		before, err := tree.h.InUse(leaf)
		if err != nil {
			t.Fatal(err)
		}
		pause(30 * time.Millisecond) // a running loop would use it
		after, err := tree.h.InUse(leaf)
		if err != nil {
			t.Fatal(err)
		}
		if used := *after.CPU - *before.CPU; used > 3*time.Millisecond {
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
	if err := signal(context.Background(), Process{PID: tracer.PID, Start: tracer.Start}, 9); err != nil {
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

// While a thread runs, what counts is the use of processors by the programs, and that cgroup.freeze is set.
func TestStillnessIsMeasured(t *testing.T) {
	loop := spawn(t, "sh", "-c", "while :; do :; done")
	eventually(t, "the loop runs", func() bool { s, err := procfs.Read(loop.PID); return err == nil && s.State == 'R' })
	for _, c := range []struct {
		name   string
		freeze string
		user   time.Duration // used in each window
		still  bool
	}{
		{"its programs use no processor", "1", 0, true},
		{"its programs use a little", "1", userTimeWindow / 10, true},
		{"its programs run", "1", 10 * userTimeWindow, false},
		{"another program has thawed it", "0", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, user := Hierarchy{Mount: t.TempDir()}, time.Minute
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(h.Mount, name), []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("cgroup.threads", strconv.Itoa(loop.PID))
			write("cgroup.freeze", c.freeze)
			check, still := stillness{h: h, cg: "/"}, false
			for range 3 {
				write("cpu.stat", fmt.Sprintf("usage_usec 0\nuser_usec %d\nsystem_usec 0", user.Microseconds()))
				text, err := check.moves()
				if err != nil {
					t.Fatal(err)
				}
				if still = still || text == ""; !still && !strings.HasSuffix(text, " (sh) runs") {
					t.Errorf("what runs is %q", text)
				}
				pause(userTimeWindow) // the window of the measurement
				user += c.user
			}
			if still != c.still || check.ran == c.still && c.freeze == "1" {
				t.Errorf("still: %v, its programs ran: %v", still, check.ran)
			}
		})
	}
}

// A freeze that ends with its context says whether it was measured that programs run.
func TestFreezeMeasuresThatProgramsRun(t *testing.T) {
	loop := spawn(t, "sh", "-c", "while :; do :; done")
	eventually(t, "the loop runs", func() bool { s, err := procfs.Read(loop.PID); return err == nil && s.State == 'R' })
	for _, c := range []struct {
		name string
		time time.Duration // of the freeze
		want bool
	}{
		{"there is time for a measurement", 4 * userTimeWindow, true},
		{"there is none", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(root, name), []byte(text+"\n"), 0o600); err != nil {
					t.Error(err)
				}
			}
			// The directory is not a cgroup: nothing freezes the loop. Its user time is that of a loop that always has a processor.
			if err := os.Mkdir(filepath.Join(root, "one"), 0o700); err != nil {
				t.Fatal(err)
			}
			write("one/cgroup.freeze", "1")
			write("one/cgroup.events", "populated 1\nfrozen 0")
			write("one/cgroup.threads", strconv.Itoa(loop.PID))
			ctx, cancel := context.WithTimeout(t.Context(), c.time)
			defer cancel()
			freezer := KernelFreezer{Root: root, userTime: func(string) (time.Duration, error) { return procfs.BootTime(), nil }}
			err := freezer.Freeze(ctx, "/one")
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrRuns) != c.want {
				t.Errorf("%v", err)
			}
		})
	}
}
