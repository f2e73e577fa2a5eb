package stop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// fakeTarget records the stages of an escalation.
type fakeTarget struct {
	did    []string
	fails  string // the stage that fails
	wait   func(context.Context) error
	atWait func()
}

var errStage = errors.New("it fails")

func (s *fakeTarget) stage(name string) error {
	s.did = append(s.did, name)
	if s.fails == name {
		return errStage
	}
	return nil
}

func (s *fakeTarget) Thaw(context.Context) error      { return s.stage("thaw") }
func (s *fakeTarget) Terminate(context.Context) error { return s.stage("terminate") }
func (s *fakeTarget) AwaitBacklog(context.Context)    { _ = s.stage("backlog") } // It cannot fail.
func (s *fakeTarget) Kill(context.Context) error      { return s.stage("kill") }
func (s *fakeTarget) Wait(ctx context.Context) error {
	s.did = append(s.did, "wait")
	if s.atWait != nil {
		s.atWait()
	}
	if s.wait == nil {
		return nil
	}
	return s.wait(ctx)
}

func TestEscalation(t *testing.T) {
	t.Parallel()
	neverEnds := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, c := range []struct {
		name   string
		fails  string
		wait   func(context.Context) error
		cancel bool // during the grace
		want   string
		err    error
	}{
		{name: "it exits on SIGTERM", want: "notify thaw terminate wait"},
		{name: "it ignores SIGTERM", wait: neverEnds, want: "notify thaw terminate wait backlog kill"},
		{name: "it cannot be thawed", fails: "thaw", want: "notify thaw", err: errStage},
		{name: "it cannot be terminated", fails: "terminate", want: "notify thaw terminate", err: errStage},
		{name: "it cannot be killed", fails: "kill", wait: neverEnds, want: "notify thaw terminate wait backlog kill", err: errStage},
		{name: "the caller's context ends", wait: neverEnds, cancel: true, want: "notify thaw terminate wait", err: context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := &fakeTarget{fails: c.fails, wait: c.wait}
			grace := 10 * time.Millisecond
			if c.cancel {
				s.atWait, grace = cancel, time.Hour
			}
			l := Escalation{Target: s, Notify: func(context.Context) { _ = s.stage("notify") }}
			if err := l.Run(ctx, grace); !errors.Is(err, c.err) {
				t.Errorf("it returned %v, want %v", err, c.err)
			}
			if got := strings.Join(s.did, " "); got != c.want {
				t.Errorf("the stages were %s, want %s", got, c.want)
			}
		})
	}
	t.Run("SIGKILL never without SIGTERM", func(t *testing.T) {
		t.Parallel()
		s := &fakeTarget{fails: "terminate"}
		l := Escalation{Target: s}
		if err := l.Terminate(t.Context()); !errors.Is(err, errStage) || l.Terminated() {
			t.Errorf("SIGTERM was sent: %v", err)
		}
		if err := l.Kill(t.Context()); !errors.Is(err, ErrNotTerminated) {
			t.Errorf("it was killed: %v", err)
		}
		if slices.Contains(s.did, "kill") || slices.Contains(s.did, "backlog") {
			t.Errorf("the stages were %v", s.did)
		}
	})
}

// script starts a shell script and returns when it has printed a line.
func script(t *testing.T, text string) (cgroup.Process, <-chan *os.ProcessState) {
	t.Helper()
	cmd := exec.Command("sh", "-c", text)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan *os.ProcessState, 1)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Errorf("it does not start: %v", err)
	}
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		t.Error(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // It was stopped by a signal.
		ended <- cmd.ProcessState
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done }) // It may have exited.
	return cgroup.Process{PID: cmd.Process.Pid, Start: start}, ended
}

// endedBy returns the signal that ended a process.
func endedBy(p *os.ProcessState) syscall.Signal {
	return p.Sys().(syscall.WaitStatus).Signal()
}

const (
	obeys   = "echo; exec sleep 3600"
	ignores = "trap '' TERM; echo; exec sleep 3600"
)

func TestStopProcesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		grace        time.Duration
		want         syscall.Signal
	}{
		{"it exits on SIGTERM", obeys, time.Hour, syscall.SIGTERM},
		{"it ignores SIGTERM", ignores, 50 * time.Millisecond, syscall.SIGKILL},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, ended := script(t, c.script)
			h, err := procfs.OpenPidfd(p.PID, p.Start)
			if err != nil {
				t.Fatal(err)
			}
			one := NewProcesses(h)
			defer one.Close()
			if err := (&Escalation{Target: one}).Run(t.Context(), c.grace); err != nil {
				t.Fatal(err)
			}
			if got := endedBy(<-ended); got != c.want {
				t.Errorf("it exited by %v, want %v", got, c.want)
			}
		})
	}
	t.Run("a process that left its lease in the meantime is not killed", func(t *testing.T) {
		t.Parallel()
		p, _ := script(t, ignores)
		h, err := procfs.OpenPidfd(p.PID, p.Start)
		if err != nil {
			t.Fatal(err)
		}
		one := NewProcesses(h)
		defer one.Close()
		signalled := false
		one.belongs = func(int) bool { defer func() { signalled = true }(); return !signalled }
		if err := (&Escalation{Target: one}).Run(t.Context(), 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if h.Ended() {
			t.Error("it was killed")
		}
	})
}

// recordingPort records whether a scope was frozen when it was killed.
type recordingPort struct {
	cgroup.Port
	frozen []bool
}

func (w *recordingPort) KillScope(ctx context.Context, id string) error {
	frozen, err := w.Frozen(id)
	w.frozen = append(w.frozen, frozen && err == nil)
	return w.Port.KillScope(ctx, id)
}

func TestStopScope(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		grace        time.Duration
		want         syscall.Signal
		killed       []bool // frozen, for each kill
	}{
		{"it exits on SIGTERM", obeys, time.Hour, syscall.SIGTERM, nil},
		{"it ignores SIGTERM", ignores, 50 * time.Millisecond, syscall.SIGKILL, []bool{true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tree := treeOf(t)
			p, ended := script(t, c.script)
			if _, err := tree.StartScope(
				t.Context(), cgroup.Scope{ID: "one", Slice: cgroup.SliceName{Tenant: "red", Grant: "part"}, Process: p},
			); err != nil {
				t.Fatal(err)
			}
			// A frozen scope is thawed first, so that SIGTERM reaches it, whatever it is frozen for.
			freezer := freezerOf(t, tree)
			for _, reason := range []cgroup.FreezeReason{cgroup.ForAdministrator, cgroup.ForTimeSlice} {
				if err := freezer.Freeze(t.Context(), "one", reason, time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			port := &recordingPort{Port: tree}
			l := Escalation{Target: &scope{port: port, freezer: freezer, id: "one", log: slog.New(slog.DiscardHandler)}}
			if err := l.Run(t.Context(), c.grace); err != nil {
				t.Fatal(err)
			}
			if got := endedBy(<-ended); got != c.want {
				t.Errorf("it exited by %v, want %v", got, c.want)
			}
			if !slices.Equal(port.frozen, c.killed) {
				t.Errorf("it was killed, frozen: %v, want %v", port.frozen, c.killed)
			}
		})
	}
}

// Without cgroups a scope is stopped without a freeze.
func TestStopScopeWithoutCgroups(t *testing.T) {
	t.Parallel()
	follow := cgroup.NewProcesses("a test")
	p, ended := script(t, ignores)
	if _, err := follow.StartScope(
		t.Context(), cgroup.Scope{ID: "one", Slice: cgroup.SliceName{Tenant: "red", Grant: "part"}, Process: p},
	); err != nil {
		t.Fatal(err)
	}
	l := Escalation{Target: &scope{port: follow, freezer: freezerOf(t, follow), id: "one", log: slog.New(slog.DiscardHandler)}}
	if err := l.Run(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := endedBy(<-ended); got != syscall.SIGKILL {
		t.Errorf("it exited by %v", got)
	}
}

// freezerOf makes a freezer with its thaw watchdog.
func freezerOf(t *testing.T, port cgroup.Port) *cgroup.Freezer {
	t.Helper()
	dir := t.TempDir()
	freezer, err := cgroup.NewFreezer(port, cgroup.FreezerOptions{RunDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	log := slog.New(slog.DiscardHandler)
	var mount string
	if h, err := cgroup.FindHierarchy(); err == nil {
		mount = h.Mount
	}
	watchdog := &cgroup.ThawWatchdog{RunDir: dir, Freezer: cgroup.KernelFreezer{Root: mount}, Log: log}
	var running sync.WaitGroup
	running.Go(func() {
		if err := watchdog.Run(ctx); err != nil {
			t.Errorf("the thaw watchdog ended: %v", err)
		}
	})
	running.Go(func() { freezer.Run(ctx, func(err error) { t.Log(err) }) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := freezer.Close(); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(10 * time.Second); freezer.Ready() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the thaw watchdog does not start")
		}
	}
	return freezer
}

// treeOf creates a cgroup tree for the test.
func treeOf(t *testing.T) *cgroup.Tree {
	t.Helper()
	h, err := cgroup.FindHierarchy()
	if os.Geteuid() != 0 || err != nil || !h.Writable() {
		t.Skipf("needs root (uid %d) and a cgroup v2 hierarchy that may be written (%v)", os.Geteuid(), err)
	}
	sum := fnv.New32a()
	sum.Write([]byte(t.Name()))
	name := fmt.Sprintf("gpushare-stop-%d-%x", os.Getpid(), sum.Sum32())
	tree, err := cgroup.NewTree(cgroup.TreeOptions{Subtree: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := tree.Destroy(ctx); err != nil {
			t.Errorf("cannot clean up %s: %v", name, err)
		}
	})
	return tree
}

// A security module may refuse SIGTERM. It is reported, the grace passes, and the kill is tried: otherwise the lease would never end.
func TestRefusedSIGTERM(t *testing.T) {
	t.Parallel()
	refusal := &procfs.RefusedError{PID: 1, Name: "python", Profile: "docker-default", Own: "gpushared"}
	for name, c := range map[string]struct {
		err      error
		stages   string
		reported bool
		want     error
	}{
		"one is refused":           {refusal, "thaw terminate wait backlog kill", true, nil},
		"all are":                  {errors.Join(refusal, refusal), "thaw terminate wait backlog kill", true, nil},
		"another fails as well":    {errors.Join(refusal, errStage), "thaw terminate", false, errStage},
		"a missing permission":     {syscall.EPERM, "thaw terminate", false, syscall.EPERM},
		"the kernel's own refusal": {syscall.EACCES, "thaw terminate", false, syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &refusingTarget{fakeTarget{wait: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}, c.err}
			var reported error
			l := Escalation{Target: s, Refused: func(err error) { reported = err }}
			err := l.Run(t.Context(), 10*time.Millisecond)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("it returned %v, want %v", err, c.want)
			}
			if got := strings.Join(s.did, " "); got != c.stages || (reported != nil) != c.reported || l.Terminated() != c.reported {
				t.Errorf("the stages were %s, want %s; reported was %v", got, c.stages, reported)
			}
		})
	}
}

// refusingTarget is a target to which SIGTERM cannot be sent.
type refusingTarget struct {
	fakeTarget
	err error
}

func (s *refusingTarget) Terminate(context.Context) error {
	s.did = append(s.did, "terminate")
	return s.err
}

// All processes of a container are stopped. Where SIGKILL is refused for each, the kernel kills its cgroup.
func TestRefusedSIGKILL(t *testing.T) {
	t.Parallel()
	refusal := &procfs.RefusedError{PID: 1, Name: "python", Profile: "docker-default", Own: "gpushared"}
	for name, c := range map[string]struct {
		err, want error
		alone     bool // others are in its cgroup
		kills     int
	}{
		"it was sent":           {nil, nil, false, 0},
		"it is refused":         {errors.Join(refusal, refusal), errStage, false, 1},
		"others are there":      {refusal, syscall.EACCES, true, 0},
		"another fails as well": {errors.Join(refusal, syscall.EPERM), syscall.EPERM, false, 0},
	} {
		kills := 0
		p := &Processes{whole: func(context.Context) error { kills++; return errStage }}
		if c.alone {
			p.whole = nil
		}
		if err := p.orWhole(t.Context(), c.err); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || kills != c.kills {
			t.Errorf("%s: %v and %d kills of the cgroup, want %v and %d", name, err, kills, c.want, c.kills)
		}
	}
}
