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

// What is read back after a freeze is what the freeze has found: a thread that waits for a processor executes nothing.
func TestReadBackMeasures(t *testing.T) {
	loop := spawn(t, "sh", "-c", "while :; do :; done")
	eventually(t, "the loop runs", func() bool { s, err := procfs.Read(loop.PID); return err == nil && s.State == 'R' })
	never := func(string) (time.Duration, error) { return time.Minute, nil }
	for _, c := range []struct {
		name     string
		freeze   string
		userTime func(string) (time.Duration, error)
		frozen   bool
	}{
		{"its programs use no processor", "1", never, true},
		{"its programs run", "1", func(string) (time.Duration, error) { return procfs.BootTime(), nil }, false},
		{"their use is not counted", "1", func(string) (time.Duration, error) { return 0, ErrNotSupported }, false},
		{"it was thawed", "0", never, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if frozen, err := (KernelFreezer{Root: notFrozen(t, loop, c.freeze), userTime: c.userTime}).Frozen(
				"/one",
			); err != nil ||
				frozen != c.frozen {
				t.Errorf("frozen %v, %v", frozen, err)
			}
		})
	}
}

// A freeze that ends with its context says whether it was measured that programs run.
func TestFreezeMeasuresThatProgramsRun(t *testing.T) {
	loop := spawn(t, "sh", "-c", "while :; do :; done")
	eventually(t, "the loop runs", func() bool { s, err := procfs.Read(loop.PID); return err == nil && s.State == 'R' })
	for _, c := range []struct {
		name     string
		readings int // of what the programs use, before the freeze ends
		want     bool
	}{
		{"there is time for a measurement", 2, true},
		{"there is none", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(within(t, 20*time.Second))
			defer cancel()
			readings := 0
			// The directory is not a cgroup: nothing freezes the loop. Its user time is that of a loop that always has a processor.
			freezer := KernelFreezer{Root: notFrozen(t, loop, "1"), userTime: func(string) (time.Duration, error) {
				if readings++; readings == c.readings {
					cancel()
				}
				return procfs.BootTime(), nil
			}}
			err := freezer.Freeze(ctx, "/one")
			if !errors.Is(err, context.Canceled) || errors.Is(err, ErrRuns) != c.want {
				t.Errorf("%v", err)
			}
		})
	}
}

// notFrozen returns a directory with the files of a cgroup named one, in which p runs although cgroup.freeze has this value.
func notFrozen(t *testing.T, p Process, freeze string) (root string) {
	t.Helper()
	root = t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "one"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"freeze": freeze, "events": "populated 1\nfrozen 0", "threads": strconv.Itoa(p.PID)} {
		if err := os.WriteFile(filepath.Join(root, "one", "cgroup."+name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
