package control

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/test/enumeration"
)

// A restart that an administrator requests replaces a control daemon that works, and names its clients first.
func TestRestartReplacesADaemonThatWorks(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	h := RestartHandler{&Handler{Supervisor: r.Supervisor, Driver: &fakeModes{mode: gpu.ComputeDefault}}}
	set := mps.Settings{GPU: gpuA, Threads: 30}
	r.start(t, set)
	p := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	before := r.running(t)
	if before.Start == 0 || before.Restarts != 0 || before.Defaults == nil || before.Defaults.Threads != 30 {
		t.Errorf("before: %+v", before)
	}
	s := mps.RestartStep(set, mps.Observed{State: before})
	if s.Disruption != step.Running || len(s.Disturbs) != 1 || s.Disturbs[0].PID != p.cmd.Process.Pid {
		t.Errorf("with a client the step is %+v", s)
	}
	if done, err := h.Applied(t.Context(), s); done || err != nil {
		t.Errorf("before the restart it counts as done: %v %v", done, err)
	}
	if err := h.Do(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if done, err := h.Applied(t.Context(), s); !done || err != nil {
		t.Errorf("after the restart it counts as not done: %v", err)
	}
	after := r.running(t)
	if after.PID == before.PID || after.Restarts != 1 || len(after.Clients) != 0 || after.Defaults.Threads != 30 {
		t.Errorf("after: %+v", after)
	}
	if s := mps.RestartStep(set, mps.Observed{State: after}); s.Disruption != step.Idle {
		t.Errorf("without a client the step is %+v", s)
	}
	p.ends(t, 1, "")
	if lines := r.LastLines(t.Context(), mps.Whole(gpuA), 3); len(lines) != 3 ||
		strings.ContainsFunc(strings.Join(lines, ""), func(r rune) bool { return r < ' ' }) {
		t.Errorf("the last three lines are %q", lines)
	}
}

// Every state from which MPS does not come out by itself ends when nothing is connected, and with clients it is named, and ends with
// the command that it names.
func TestStuckStatesEnd(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		harm func(t *testing.T, r *fixture, st *mps.State)
		// keeps: it is corrected without a restart, also with clients.
		keeps bool
	}{
		"the control daemon is stopped": {harm: func(t *testing.T, _ *fixture, st *mps.State) { signalPID(t, st.PID, syscall.SIGSTOP) }},
		"the control daemon is killed":  {harm: func(t *testing.T, _ *fixture, st *mps.State) { signalPID(t, st.PID, syscall.SIGKILL) }},
		"the clients' socket is removed": {keeps: true, harm: func(t *testing.T, r *fixture, _ *mps.State) {
			remove(t, filepath.Join(r.pipe(), "control"))
		}},
		"the privileged socket is removed": {keeps: true, harm: func(t *testing.T, r *fixture, _ *mps.State) {
			remove(t, filepath.Join(r.pipe(), "control_privileged"))
		}},
		"the directory of the sockets is removed": {keeps: true, harm: func(t *testing.T, r *fixture, _ *mps.State) { remove(t, r.pipe()) }},
		"the tenants' directory is removed":       {keeps: true, harm: func(t *testing.T, r *fixture, _ *mps.State) { remove(t, r.layout(mps.Whole(gpuA)).tenant()) }},
		"all directories are removed":             {harm: func(t *testing.T, r *fixture, _ *mps.State) { remove(t, r.layout(mps.Whole(gpuA)).dir) }},
		"the mode of the directory is changed": {keeps: true, harm: func(t *testing.T, r *fixture, _ *mps.State) {
			if err := os.Chmod(r.layout(mps.Whole(gpuA)).dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		"the log is silenced": {harm: func(t *testing.T, r *fixture, _ *mps.State) {
			f, err := os.OpenFile(filepath.Join(r.pipe(), "log"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(strings.Repeat("x", 101)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		for _, clients := range []bool{false, true} {
			label := name + ", no client"
			if clients {
				label = name + ", a client"
			}
			t.Run(label, func(t *testing.T) {
				t.Parallel()
				r := newFixture(t)
				h := &Handler{Supervisor: r.Supervisor, Driver: &fakeModes{mode: gpu.ComputeDefault}}
				set := mps.Settings{GPU: gpuA, Threads: 30, Memory: 2 << 30}
				r.start(t, set)
				var p *program
				if clients {
					p = r.burn(t, r.environment(t, mps.Limits{}), "--hold")
				}
				before := r.running(t)
				c.harm(t, r, before)
				st, due := r.converged(t, h, set, p)
				if !clients || c.keeps {
					if !st.Healthy() {
						t.Fatalf("it is not corrected: %+v, due %+v", st, due)
					}
					if c.keeps && (st.PID != before.PID || len(st.Clients) != len(before.Clients)) {
						t.Errorf("before %+v, after %+v", before, st)
					}
				} else {
					if st.Reason == "" && !st.LogSilent || due == nil || due.Disruption != step.Running || len(due.Disturbs) == 0 {
						t.Fatalf("with a client: %+v, due %+v", st, due)
					}
					if _, err := procfs.Start(p.cmd.Process.Pid); err != nil {
						t.Error("the client was ended")
					}
					restart := mps.RestartStep(set, r.observed(st, p))
					if restart.Disruption != step.Running {
						t.Errorf("the restart is %+v", restart)
					}
					if err := (RestartHandler{h}).Do(t.Context(), restart); err != nil {
						t.Fatal(err)
					}
					st = r.running(t)
				}
				if st.Settings == nil || *st.Settings != set || st.Defaults == nil || st.Defaults.Threads != 30 ||
					st.Defaults.Memory != "2G" {
					t.Errorf("its limits are not in force: %+v %+v", st.Settings, st.Defaults)
				}
				if !clients || !c.keeps {
					r.burn(t, r.environment(t, mps.Limits{}), "--hold") // A client joins by the same environment.
				}
			})
		}
	}
}

// converged converges without authority until nothing more can be done, and returns the step that is due and needs authority.
func (f *fixture) converged(t *testing.T, h *Handler, set mps.Settings, p *program) (*mps.State, *step.Step) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var st *mps.State
	var due *step.Step
	for range 2*maxMissedGreetings + 2 {
		f.clock.pass(logInterval)
		st, due = h.Supervisor.observeNow(ctx, set.Device()), nil
		if _, err := h.Supervisor.Restrict(set.Device(), Reach{}, h.Supervisor.Now()); err != nil {
			t.Fatal(err)
		}
		for _, s := range mps.Plan(map[mps.Device]mps.Settings{set.Device(): set}, map[mps.Device]mps.Observed{set.Device(): f.observed(st, p)}) {
			if s.Disruption == step.Running {
				due = &s
				continue
			}
			if err := h.Do(ctx, s); err != nil {
				t.Fatalf("%s, because %s: %v", s.Text, s.Reason, err)
			}
		}
	}
	return st, due
}

// observed has the client as the driver lists it.
func (f *fixture) observed(st *mps.State, p *program) mps.Observed {
	o := mps.Observed{State: st}
	if p != nil {
		if _, err := procfs.Start(p.cmd.Process.Pid); err == nil {
			o.Processes = []gpu.Process{{PID: p.cmd.Process.Pid, Kind: gpu.MPSProcess}}
		}
	}
	return o
}

func signalPID(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
	if sig == syscall.SIGKILL {
		procfstest.AwaitEnd(t, pid)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}
