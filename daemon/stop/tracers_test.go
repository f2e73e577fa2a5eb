package stop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/tracing"
)

func TestWhyTracerKept(t *testing.T) {
	t.Parallel()
	const user = FirstUser + 1
	for _, c := range []struct {
		name     string
		decision Decision
		tracer   *uint32
		want     string
	}{
		{"the same user", MayStop, new(uint32(user)), ""},
		{"another user", MayStop, new(uint32(user + 1)), "it belongs to another user"},
		{"root", IsRoot, new(uint32(0)), "it belongs to root"},
		{"a service of the system", IsSystem, new(uint32(user)), "it belongs to the system"},
		{"it has exited", Unknown, nil, "its user cannot be read"},
		{"it exits now", MayStop, nil, "its user cannot be read"},
	} {
		if got := whyTracerKept(c.decision, c.tracer, user); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// asUser returns a uid for programs of an ordinary user.
func asUser(t *testing.T) int {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	return 54321
}

// traced starts a program of an ordinary user in a scope, and a process that traces all its threads.
func traced(t *testing.T, tree *cgroup.Tree, program string, uid, tracerUID int) (p, tracer tracing.Program) {
	t.Helper()
	p = tracing.Run(t, tracing.Command(t, uid, program))
	if _, err := tree.StartScope(
		t.Context(),
		cgroup.Scope{ID: "one", Slice: cgroup.SliceName{Tenant: "red", Grant: "part"}, Process: cgroup.Process{PID: p.PID, Start: p.Start}},
	); err != nil {
		t.Fatal(err)
	}
	tracer = tracing.Run(t, tracing.Command(t, tracerUID, tracing.Trace, append(tracing.Others(t, p.PID), p.PID)...))
	return p, tracer
}

// A process that its tracer keeps in its exit ends all the same: its tracer is stopped, and what traces the tracer.
func TestTracersAreStoppedWithTheirProcess(t *testing.T) {
	enumeration.Long(t)
	for _, c := range []struct {
		name    string
		program string
		chain   int
	}{
		{"one tracer", tracing.Large, 0},
		{"a tracer of the tracer, and one of that", tracing.Large, 2},
		{"a process whose first thread exited", tracing.FirstThreadExits, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			uid, tree := asUser(t), treeOf(t)
			p, tracer := traced(t, tree, c.program, uid, uid)
			p.CloseInput()
			all := []tracing.Program{tracer}
			for range c.chain {
				last := all[len(all)-1].PID
				all = append(all, tracing.Run(t, tracing.Command(t, uid, tracing.Trace, append(tracing.Others(t, last), last)...)))
			}
			var stopped []string
			s := &scope{port: tree, id: "one", log: slog.New(slog.DiscardHandler), watcher: watcher{stopped: func(text string) {
				stopped = append(stopped, text)
			}}}
			began := time.Now()
			if err := s.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-p.Ended
			t.Logf("it ended %.1f s after SIGKILL", time.Since(began).Seconds())
			for i, x := range all {
				<-x.Ended
				if i < len(stopped) && !strings.HasPrefix(stopped[i], fmt.Sprintf("pid %d ", x.PID)) {
					t.Errorf("it reported %q", stopped)
				}
			}
			if len(stopped) != len(all) {
				t.Errorf("%d tracers were stopped, %q were reported", len(all), stopped)
			}
		})
	}
	t.Run("a process of no lease", func(t *testing.T) {
		t.Parallel()
		uid := asUser(t)
		p := tracing.Run(t, tracing.Command(t, uid, tracing.Large))
		tracing.Run(t, tracing.Command(t, uid, tracing.Trace, p.PID))
		h, err := procfs.OpenPidfd(p.PID, p.Start)
		if err != nil {
			t.Fatal(err)
		}
		one := NewProcesses(h)
		defer one.Close()
		if err := one.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-p.Ended
	})
}

// A tracer of root or of another user is not stopped. The stop ends in time and says who keeps the process.
func TestTracersThatAreKept(t *testing.T) {
	t.Parallel()
	uid, tree := asUser(t), treeOf(t)
	p, tracer := traced(t, tree, tracing.Large, uid, 0)
	waits := 0
	s := &scope{port: tree, id: "one", log: slog.New(slog.DiscardHandler), watcher: watcher{waits: func(*AliveError) { waits++ }}}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := s.Kill(ctx)
	alive, ok := errors.AsType[*AliveError](err)
	if !ok || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it returned %v", err)
	}
	want := fmt.Sprintf(
		"pid %d (program) was killed and has not exited: it is traced by pid %d (program) of root, which is not stopped: it belongs to root",
		p.PID,
		tracer.PID,
	)
	if alive.Error() != want || alive.Hint() != fmt.Sprintf("end the tracer: 'kill -9 %d'", tracer.PID) || waits < 2 {
		t.Errorf("after %d checks: %s, hint %q", waits, alive, alive.Hint())
	}
	select {
	case <-tracer.Ended:
		t.Error("a tracer of root was stopped")
	default:
	}
}

// A pid that is another process by now has no tracer of the one that was killed.
func TestTracersOfAReusedPID(t *testing.T) {
	t.Parallel()
	uid := asUser(t)
	p := tracing.Run(t, tracing.Command(t, uid, tracing.Large))
	tracer := tracing.Run(t, tracing.Command(t, uid, tracing.Trace, p.PID))
	if got := tracersOf(cgroup.Process{PID: p.PID, Start: p.Start}); len(got) != 1 || got[0].PID != tracer.PID ||
		got[0].Start != tracer.Start {
		t.Errorf("its tracers are %v", got)
	}
	var x tracers
	for range 2 {
		x.stop(t.Context(), []cgroup.Process{{PID: p.PID, Start: p.Start - 1}})
	}
	select {
	case <-tracer.Ended:
		t.Error("the tracer of another process was stopped")
	default:
	}
}
