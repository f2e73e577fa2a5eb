package daemon

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/test/scenarios"
)

// invariants checks I1 to I6 of a node on which a change had a fault, when nothing is running any more. where is the fault.
func (s *staged) invariants(where string) {
	s.Helper()
	report := func(id, format string, args ...any) {
		s.Helper()
		s.Errorf("%s: %s: %s", where, id, fmt.Sprintf(format, args...))
	}
	if s.state.Changing() != nil || len(s.state.Stored().Change) != 0 {
		report("I1", "a change is still open")
	}
	s.specKept(report)
	st := s.statusNow()
	s.instancesExplained(st, report)
	s.processesKept(report)
	s.victimStopped(st, report)
	s.limitsTrue(st, report)
	s.idempotent(report)
	for _, breach := range s.violations {
		report("I3", "%s", breach)
	}
	s.violations = nil
}

type reporter func(id, format string, args ...any)

// I1: the acknowledged spec is on disk, and no other.
func (s *staged) specKept(report reporter) {
	s.Helper()
	expected := s.SpecFrom()
	if s.answered && !s.refused {
		expected = s.SpecTo()
	}
	accepted := s.state.Stored().Accepted
	if accepted == nil || !sameSpec(accepted, expected) {
		report("I1", "the spec in force is not the one that was acknowledged: %+v", accepted)
	}
}

// sameSpec compares the stored spec with the sent one. The stored one is in the normal form.
func sameSpec(accepted *store.Accepted, text string) bool {
	sent, err := spec.Decode("sent", []byte(text))
	if err != nil {
		return false
	}
	kept, err := spec.Encode(sent)
	return err == nil && string(kept) == accepted.YAML
}

// I2: every GPU is wholly as the spec says, or wholly as it was, or is reported as lost or stuck. Exactly the instances that
// gpushare did not create are reported as foreign.
func (s *staged) instancesExplained(st *api.Status, report reporter) {
	s.Helper()
	for i := range s.Boards {
		g := &st.GPUs[i]
		names, expected := s.namesOf(i), s.Desired(i, s.foreign)
		if s.refused {
			if now := s.layoutOf(i); now != s.before[i] {
				report("I2", "it was refused, and GPU %d has %s, had %s", i, now, s.before[i])
			}
			continue
		}
		switch g.State {
		case "ok":
			if !slices.Equal(names, expected) {
				report("I2", "GPU %d is ok and has %v, want %v", i, names, expected)
			}
		case "held":
			if g.Reason == "" {
				report("I2", "GPU %d is held without a reason", i)
			}
			if now := s.layoutOf(i); now != s.before[i] && !s.Boots && !strings.Contains(g.Reason, "could not be undone") {
				report("I2", "GPU %d is held (%s) and has %s, had %s", i, g.Reason, now, s.before[i])
			}
		case "lost", "stuck", "unreadable":
			if g.Reason == "" {
				report("I2", "GPU %d is %s without a reason", i, g.State)
			}
		default:
			report("I2", "GPU %d is %s", i, g.State)
		}
	}
	foreign := 0
	for _, c := range st.Node.Conditions {
		if c.Kind == "foreign" {
			foreign++
		}
	}
	if seen := st.GPUs[0].State == "ok"; seen && foreign != len(s.foreign) {
		report("I2", "%d instances are reported as foreign, %d are", foreign, len(s.foreign))
	}
}

// I4: the process that used an instance still uses the same one.
func (s *staged) processesKept(report reporter) {
	s.Helper()
	g := s.truth()[0]
	if s.Busy == "" || s.Force || g.Lost || g.Resets > 0 {
		return
	}
	if !slices.ContainsFunc(g.Processes, func(p gpu.Process) bool { return p.PID == busyPID && p.GI != nil && *p.GI == s.instance }) {
		report("I4", "the process in instance %d is not there any more: %+v", s.instance, g.Processes)
	}
}

// I4 with authority: the process that blocks the change is stopped when the change is done, and not when it was refused.
func (s *staged) victimStopped(st *api.Status, report reporter) {
	s.Helper()
	if s.victim == nil || s.Busy == "" {
		return
	}
	switch alive := s.victim.alive(); {
	case s.refused && !alive:
		report("I4", "the change was refused, and the process that blocks it was stopped")
	case !s.refused && alive && st.GPUs[0].State == "ok":
		report("I4", "the change is done, and the process that blocked it still runs")
	}
}

// I5, and I3 at the end: the reported limits are in force and are those of the spec; no device is open that should not be.
func (s *staged) limitsTrue(st *api.Status, report reporter) {
	s.Helper()
	gib := scenarios.MemoryFrom
	if s.answered && !s.refused && !s.Boots {
		gib = scenarios.MemoryTo
	}
	for _, sl := range s.port.list() {
		if sl.Name.Grant != "" {
			continue
		}
		max := sl.Limits.MemoryMax
		if max == nil || *max != uint64(gib)<<30 {
			report("I3", "the slice of %s has limits %s, the spec says %d GiB", sl.Name, limitsText(sl.Limits), gib)
			continue
		}
		for i := range st.Tenants {
			for _, l := range st.Tenants[i].Limits {
				if l.Name == "memory.max" && (l.InForce != fmt.Sprintf("%dGiB", *max>>30) || l.Desired != fmt.Sprintf("%dGiB", gib)) {
					report("I5", "status reports memory %q of %q, in force is %d GiB of %d", l.InForce, l.Desired, *max>>30, gib)
				}
			}
		}
	}
	for _, stale := range s.staleRules() {
		report("I3", "%s", stale)
	}
}

// I6: to converge again changes nothing.
func (s *staged) idempotent(report reporter) {
	s.Helper()
	before, sliceWrites := s.node.Counters().Writes, s.port.writes
	s.waitIdle(nil)
	if calls, set := s.node.Counters().Writes-before, s.port.writes-sliceWrites; calls != 0 || set != 0 {
		report("I6", "to converge again wrote %d times to the GPUs and %d times to slices", calls, set)
	}
}

// correct does what an administrator does after a fault, and checks the result: every GPU is as the spec says, and to apply
// the spec again changes nothing, in this run of the daemon and in the next.
func (s *staged) correct(where string) {
	s.Helper()
	s.node.ClearFaults(0)
	if slices.ContainsFunc(s.truth(), func(g gpusim.GPUView) bool { return g.Lost }) {
		s.reboot() // A GPU that fell off the bus comes back with a boot.
		s.Busy, s.foreign = "", nil
		if s.victim != nil {
			s.victim.end()
		}
		s.waitIdle(nil)
	}
	for i, g := range s.statusNow().GPUs {
		if g.State == "ok" {
			continue
		}
		var op api.Operation
		if refusal := s.do(http.MethodPost, fmt.Sprintf("/v1/gpus/%d/retry", i), "", &op); refusal != nil && s.Query() == "" {
			s.Errorf("%s: a retry of GPU %d, which is %s (%s), is refused: %v", where, i, g.State, g.Reason, refusal)
		}
		s.waitIdle(nil)
	}
	res, op, refusal := s.apply(s.SpecTo(), s.Query())
	if refusal != nil || op != nil && op.State != "done" {
		s.Errorf("%s: to apply again fails: %v, %+v", where, refusal, op)
	}
	if s.answered && !s.refused && res.Changed && s.Query() == "" {
		s.Errorf("%s: the GPUs were tried again, and to apply again changes something: %+v", where, res.Plan.Steps)
	}
	s.refused, s.answered = false, true
	s.invariants(where + ", corrected")
	for i, g := range s.statusNow().GPUs {
		if g.State != "ok" {
			s.Errorf("%s, corrected: GPU %d is %s: %s", where, i, g.State, g.Reason)
		}
	}
	s.end()
	s.startDaemon()
	s.waitIdle(nil)
	s.invariants(where + ", corrected and started again")
	s.end()
}
