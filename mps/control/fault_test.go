package control

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/test/enumeration"
)

// A fault is found when the driver reports an error: the culprit from the server's log, the victims, and those that still run. No
// client joins until all have ended, and then it serves again.
func TestFaultNamesCulpritAndVictims(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) { // Before 550 no command reports a fault.
		t.Run(driver, func(t *testing.T) {
			r := newFixtureOf(t, driver)
			r.start(t, mps.Settings{GPU: gpuA})
			var programs []*program
			for range 3 {
				programs = append(programs, r.burn(t, r.environment(t, mps.Limits{}), "--hold"))
			}
			before := r.running(t)
			if before.Fault != nil || len(before.Clients) != 3 {
				t.Fatalf("before: %+v", before)
			}
			culprit, victim, straggler := programs[0].cmd.Process.Pid, programs[1].cmd.Process.Pid, programs[2].cmd.Process.Pid
			signalPID(t, straggler, syscall.SIGSTOP)
			c := client{program: r.Control, pipeDir: r.pipe()}
			if out, err := c.query(t.Context(), "gpusim_fault "+strconv.Itoa(culprit)); err != nil ||
				strings.TrimSpace(string(out)) != "0" {
				t.Fatalf("no fault: %q %v", out, err)
			}
			procfstest.AwaitEnd(t, culprit)
			procfstest.AwaitEnd(t, victim)
			r.Suspect(gpuA, 31)
			st := r.Observe(t.Context(), deviceA)
			victims := []int{victim, straggler}
			slices.Sort(victims)
			if st.Healthy() || st.Fault == nil || st.Fault.Culprit != culprit || st.Fault.XID != 31 ||
				!slices.Equal(st.Fault.Victims, victims) ||
				!slices.Equal(st.Fault.Stragglers, []int{straggler}) {
				t.Fatalf("with a fault: %+v, fault %+v", st, st.Fault)
			}
			// A server that stays in its fault is one that does not answer, and restarting it stops those that run.
			r.clock.pass(mps.FaultTime)
			stuck := r.Observe(t.Context(), deviceA)
			if stuck.Phase != mps.Unresponsive || !stuck.Fault.Stuck || !stuck.Fault.Since.Equal(st.Fault.Since) ||
				!strings.Contains(stuck.Reason, "(XID 31) for more than 30s") {
				t.Errorf("after %s: %+v, fault %+v", mps.FaultTime, stuck, stuck.Fault)
			}
			if steps := mps.Plan(
				map[mps.Device]mps.Settings{deviceA: {GPU: gpuA}}, map[mps.Device]mps.Observed{deviceA: {State: stuck}},
			); len(steps) != 1 || steps[0].Disruption != step.Running ||
				steps[0].Reason != stuck.Reason {
				t.Errorf("the steps are %+v", steps)
			}
			signalPID(t, straggler, syscall.SIGKILL)
			after := r.running(t)
			if after.PID != before.PID || !slices.Equal(after.Servers, before.Servers) || after.Fault == nil ||
				len(after.Fault.Stragglers) != 0 ||
				!after.Fault.Since.Equal(st.Fault.Since) {
				t.Errorf("after: %+v, fault %+v", after, after.Fault)
			}
			r.burn(t, r.environment(t, mps.Limits{}), "--hold")
			// The same lines are not another fault.
			if again := r.running(t); !again.Fault.Since.Equal(st.Fault.Since) {
				t.Errorf("later: %+v", again.Fault)
			}
		})
	}
}

// A fault that comes after the driver's report of it is found however often the node was observed in between, and one of which the
// driver said nothing when its clients have ended, also when something else has read so before.
func TestFaultAfterTheReport(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		for _, how := range []string{"reported", "not reported", "not reported, and the clients were read"} {
			reported := how == "reported"
			t.Run(driver+" "+how, func(t *testing.T) {
				r := newFixtureOf(t, driver)
				r.start(t, mps.Settings{GPU: gpuA})
				culprit := r.burn(t, r.environment(t, mps.Limits{}), "--hold").cmd.Process.Pid
				straggler := r.burn(t, r.environment(t, mps.Limits{}), "--hold").cmd.Process.Pid
				r.running(t)
				if reported {
					signalPID(t, straggler, syscall.SIGSTOP)
					r.Suspect(gpuA, 31)
					for range 10 {
						if st := r.Observe(t.Context(), deviceA); st.Fault != nil {
							t.Fatalf("before: %+v", st.Fault)
						}
					}
				}
				c := client{program: r.Control, pipeDir: r.pipe()}
				if out, err := c.query(t.Context(), "gpusim_fault "+strconv.Itoa(culprit)); err != nil ||
					strings.TrimSpace(string(out)) != "0" {
					t.Fatalf("no fault: %q %v", out, err)
				}
				procfstest.AwaitEnd(t, culprit)
				if reported {
					r.clock.pass(retryGreeting)
				} else {
					procfstest.AwaitEnd(t, straggler)
				}
				if strings.HasSuffix(how, "were read") {
					if clients, err := r.Clients(t.Context(), deviceA); err != nil || len(clients) > 0 {
						t.Fatalf("the clients are %v, %v", clients, err)
					}
					if wait, _, _ := r.watch.take(r.Now()); wait > 0 {
						t.Errorf("the device is to be observed after %s", wait)
					}
				}
				if st := r.Observe(
					t.Context(), deviceA,
				); st.Fault == nil || st.Fault.Culprit != culprit || !slices.Equal(st.Fault.Victims, []int{straggler}) ||
					(st.Fault.XID != 0) != reported {
					t.Errorf("after: %+v, fault %+v", st, st.Fault)
				}
			})
		}
	}
}

// An observation that could not be made because the clients were read is made up for, so that a suspicion is not left to chance.
func TestObservedAgain(t *testing.T) {
	t.Parallel()
	r := newFixtureOf(t, onEveryBranch(t)[0])
	r.start(t, mps.Settings{GPU: gpuA})
	r.running(t)
	r.Suspect(gpuA, 31)
	r.duringAChange(func() { r.Observe(t.Context(), deviceA) })
	if wait, _, _ := r.watch.take(r.Now()); wait > retryGreeting {
		t.Errorf("it is observed again after %s, want at most %s", wait, retryGreeting)
	}
}

// A check that is planned earlier is kept: a restart that is due in a moment is not put off.
func TestAnEarlierCheckIsKept(t *testing.T) {
	t.Parallel()
	var w watch
	now := time.Now()
	for _, after := range []time.Duration{3 * time.Second, time.Second, 2 * time.Second} {
		w.checkAt(deviceA, now.Add(after))
	}
	if wait, _, _ := w.take(now); wait != time.Second {
		t.Errorf("it is checked after %s, want 1s", wait)
	}
}
