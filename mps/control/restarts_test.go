package control

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/test/programs"
)

func TestDelaysGrowUpToALimit(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	var r restarts
	for n := 1; n <= maxFailures+3; n++ {
		r.failed(now, "it broke")
		least, most := float64(delay(n))*(1-jitter), float64(delay(n))*(1+jitter)
		if got := float64(r.next.Sub(now)); got < least || got > most || n > 1 && delay(n) < delay(n-1) || delay(n) > maxDelay {
			t.Errorf("the start after failure %d is in %v, want %v and a fifth of it more or less", n, r.next.Sub(now), delay(n))
		}
		want := mps.Restarting
		if n >= maxFailures {
			want = mps.Failed
		}
		if phase, reason := r.phase(""); phase != want || !strings.Contains(reason, "it broke") {
			t.Errorf("after %d failures it is %s: %s, want %s", n, phase, reason, want)
		}
		now = r.next
		r.started(now)
		now = now.Add(stableAfter - 1) // It ran, and not for long enough.
	}
	r.started(now)
	r.forgetOld(now.Add(stableAfter))
	if r.failures != 0 {
		t.Errorf("a daemon that runs for %v has %d failures", stableAfter, r.failures)
	}
	// The last delay is longer than what counts as stable: only the time of a daemon that runs counts.
	r = restarts{}
	for range maxFailures {
		r.failed(now, "it broke")
		now = now.Add(maxDelay * 2)
	}
	if phase, _ := r.phase(""); phase != mps.Failed {
		t.Errorf("after %d failed starts it is %s", maxFailures, phase)
	}
}

// converge observes once and carries out the step that is due, as the daemon does without authority.
func (f *fixture) converge(ctx context.Context, h *Handler, set mps.Settings) (*mps.State, error) {
	st := h.Supervisor.observeNow(ctx, set.Device())
	for _, s := range mps.Plan(map[mps.Device]mps.Settings{set.Device(): set}, map[mps.Device]mps.Observed{set.Device(): {State: st}}) {
		if st.Waits(f.Supervisor.Now()) {
			break
		}
		if err := h.Do(ctx, s); err != nil {
			return st, errors.Join(err, h.Undo(ctx, s))
		}
		st = h.Supervisor.observeNow(ctx, set.Device())
	}
	return st, nil
}

// kept runs a loop as that of the daemon until the condition holds.
func (f *fixture) kept(t *testing.T, h *Handler, set mps.Settings, until func(*mps.State) bool) *mps.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	checks, ended := make(chan struct{}, 1), make(chan struct{})
	defer func() { cancel(); <-ended }()
	f.Now = time.Now
	go func() {
		defer close(ended)
		f.Watch(ctx, func() {
			select {
			case checks <- struct{}{}:
			default:
			}
		})
	}()
	for {
		st, err := f.converge(ctx, h, set)
		if until(st) {
			return st
		}
		select {
		case <-checks: // Nothing else makes it check again.
		case <-ctx.Done():
			t.Fatalf("the last observation is %+v (%v)", st, err)
		}
	}
}

// A control daemon that was killed is started again within three seconds, with its limits and its tenants' socket, and without
// anything that observes it regularly. No other test runs meanwhile, because that is real time.
func TestKilledDaemonRunsAgainWithinSeconds(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			r := newFixture(t)
			h := &Handler{Supervisor: r.Supervisor, Driver: &fakeModes{mode: gpu.ComputeDefault}}
			set := mps.Settings{GPU: gpuA, Threads: 30, Memory: 2 << 30}
			var first *mps.State
			var killed time.Time
			var late time.Duration // how long this process, which watches it, and the next daemon had no processor since then
			again := r.kept(t, h, set, func(st *mps.State) bool {
				switch {
				case !st.Healthy():
					return false
				case first == nil:
					first, killed, late = st, time.Now(), -procfstest.Waited(os.Getpid())
					if err := syscall.Kill(first.PID, signal); err != nil {
						t.Fatal(err)
					}
				}
				return st.PID != first.PID
			})
			duration := time.Since(killed)
			late += procfstest.Waited(os.Getpid()) + procfstest.Waited(again.PID)
			t.Logf("it ran again after %v, %v of it without a processor", duration, late)
			if duration -= max(0, late); duration > 3*time.Second {
				t.Errorf("it ran again after %v, without what it had no processor for", duration)
			}
			if *again.Settings != set {
				t.Errorf("it runs with %+v", again.Settings)
			}
			r.burn(t, r.environment(t, mps.Limits{}), "--hold") // A client joins by the same environment.
		})
	}
}

// A program that always ends is started less and less often, is then called failed, and what it says is in the reason.
func TestProgramThatAlwaysEnds(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	real := r.Control
	r.Control = filepath.Join(r.node.Root, "usr/bin/broken")
	script := "#!/bin/sh\necho '[2026-01-02 03:04:05.678 Control  17] Cannot do without a fan' >&2\nexit 1\n"
	if err := programs.Write(r.Control, script); err != nil {
		t.Fatal(err)
	}
	h := &Handler{Supervisor: r.Supervisor, Driver: &fakeModes{mode: gpu.ComputeDefault}}
	set := mps.Settings{GPU: gpuA}
	begin := r.clock.Now()
	for i := range maxFailures {
		if _, err := r.converge(t.Context(), h, set); err == nil ||
			!strings.Contains(err.Error(), `exited with 1; it said "Cannot do without a fan"`) {
			t.Fatalf("start %d: %v", i+1, err)
		}
		st, err := r.converge(t.Context(), h, set)
		if err != nil || !st.Down() || !st.Waits(r.clock.Now()) {
			t.Fatalf("it is started again at once: %+v %v", st, err)
		}
		r.clock.pass(st.Retry.Sub(r.clock.Now()))
	}
	st, _ := r.converge(t.Context(), h, set)
	if st.Phase != mps.Failed || !strings.Contains(st.Reason, "without a fan") || !strings.Contains(st.Reason, "6 failures") {
		t.Errorf("after %d failures: %+v", maxFailures, st)
	}
	if duration := r.clock.Now().Sub(begin); duration < maxDelay/2 || duration > 2*maxDelay {
		t.Errorf("seven starts lasted %v", duration)
	}
	// The next start with a program that works heals it.
	r.Control = real
	st = h.Supervisor.observeNow(t.Context(), deviceA)
	r.clock.pass(st.Retry.Sub(r.clock.Now()))
	if st, err := r.converge(t.Context(), h, set); err != nil || !st.Healthy() {
		t.Errorf("with a program that works: %+v %v", st, err)
	}
}

// A correction that fails stops nothing: the control daemon, its servers and their clients stay.
func TestCorrectionThatFailsStopsNothing(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	m := &fakeModes{mode: gpu.ComputeDefault}
	h := &Handler{Supervisor: r.Supervisor, Driver: m}
	set := mps.Settings{GPU: gpuA, Threads: 30, DenyBypass: true}
	do(t, h, onlyStep(t, h, &set))
	p := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	before := r.running(t)
	if err := os.Remove(filepath.Join(r.layout(deviceA).tenant(), "control")); err != nil {
		t.Fatal(err)
	}
	r.observe(t)
	correction := onlyStep(t, h, &set)
	real := r.Control
	r.Control = filepath.Join(r.node.Root, "usr/bin/broken")
	if err := programs.Write(r.Control, "#!/bin/sh\nexit 1\n"); err != nil {
		t.Fatal(err)
	}
	if err := h.Do(t.Context(), correction); err == nil {
		t.Error("a correction that cannot be read back succeeded")
	}
	if err := h.Undo(t.Context(), correction); err == nil {
		t.Error("an undo that cannot be read back succeeded")
	}
	r.Control = real
	if m.mode != gpu.ComputeExclusiveProcess {
		t.Errorf("the compute mode is %s", m.mode)
	}
	do(t, h, onlyStep(t, h, &set))
	after := r.running(t)
	if after.PID != before.PID || len(after.Clients) != 1 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.ends(t, 143, "stopped by SIGTERM")
}

// A step that was planned when nothing ran stops nothing that runs when it is carried out.
func TestStepDoesNotStopWhatItDidNotName(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	h := &Handler{Supervisor: r.Supervisor, Driver: &fakeModes{mode: gpu.ComputeDefault}}
	set := mps.Settings{GPU: gpuA}
	start := onlyStep(t, h, &set)
	r.start(t, mps.Settings{GPU: gpuA, Threads: 40})
	pid := r.running(t).PID
	if err := os.Remove(r.layout(deviceA).record()); err != nil { // It is another program's now, and only a start would give it limits.
		t.Fatal(err)
	}
	r.Supervisor = r.supervisor()
	h.Supervisor = r.Supervisor
	if err := h.Do(t.Context(), start); err == nil || !strings.Contains(err.Error(), "would stop its clients") {
		t.Errorf("got %v", err)
	}
	if r.running(t).PID != pid {
		t.Error("it was restarted")
	}
}
