package daemon

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/scenarios"
)

// fault is one way for a call to fail.
type fault struct {
	name string
	do   gpusim.Fault
}

func faultKinds() []fault {
	return []fault{
		{"IN_USE", gpusim.Fault{Do: gpusim.FaultFail, Code: gpusim.InUse}},
		{"INSUFFICIENT_RESOURCES", gpusim.Fault{Do: gpusim.FaultFail, Code: gpusim.InsufficientResources}},
		{"GPU_IS_LOST", gpusim.Fault{Do: gpusim.FaultLose}},
		{"a hang", gpusim.Fault{Do: gpusim.FaultHang}},
		{"a hang after the effect", gpusim.Fault{Do: gpusim.FaultHang, After: true}},
		{"an error after the effect", gpusim.Fault{Do: gpusim.FaultFail, Code: gpusim.UnknownError, After: true}},
	}
}

// TestEveryCallFailsOnce makes every call of every change fail, one in each run, in each way in which calls fail. After each
// run, and again after the fault was corrected, the invariants hold.
func TestEveryCallFailsOnce(t *testing.T) {
	enumeration.Long(t)
	for _, s := range allScenarios() {
		for _, f := range faultKinds() {
			t.Run(s.Name+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				calls := []string{"any"}
				if f.do.After { // A call that only reads has no effect before the fault.
					calls = writeCalls()
				}
				runs := 0
				for _, call := range sample(calls, s.Name+f.name) {
					each(t, first(s.Name+f.name, f.do.After), func(nth int) (hit bool) {
						do := f.do
						do.Call, do.Nth = call, nth
						s.play(t, func(t *testing.T, s *scenario) { hit = s.fails(t, f.name, do) })
						runs++
						return hit
					})
				}
				t.Logf("%d runs", runs)
			})
		}
	}
}

// TestChangesAreCounted checks the number of calls of each change, by which the tests of the shipped programs select the
// call that fails.
func TestChangesAreCounted(t *testing.T) {
	for _, s := range allScenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.play(t, func(t *testing.T, s *scenario) {
				w := s.stage(t, nil)
				if _, err := w.node.AddFault(gpusim.Fault{Call: "write", GPU: "0", Nth: 1 << 20, Do: gpusim.FaultFail}); err != nil {
					t.Fatal(err)
				}
				w.start()
				w.waitIdle(nil)
				if seen := w.node.Faults()[0].Seen; seen != s.Changes {
					t.Errorf("%d calls change GPU 0, the scenario says %d", seen, s.Changes)
				}
				w.invariants("nothing failed")
			})
		})
	}
}

// each tries the calls one after the other until the fault hits none; of a sample, only the first.
func each(t *testing.T, first int, try func(nth int) (hit bool)) {
	t.Helper()
	if enumeration.Sampled() {
		try(first)
		return
	}
	offset, stride := enumeration.Part(t.Name())
	for nth := first + offset; try(nth) && !t.Failed(); nth += stride {
	}
}

// first returns the first call that fails: for a sample another one in each list.
func first(name string, few bool) int {
	if few || !enumeration.Sampled() {
		return 1
	}
	return 1 + sum(name)%43
}

// sample returns the whole list, or every third call.
func sample(calls []string, name string) []string {
	if !enumeration.Sampled() || len(calls) < 3 {
		return calls
	}
	at := sum(name) % 3
	return []string{calls[at], calls[at+3]}
}

func sum(name string) (sum int) {
	for _, b := range []byte(name) {
		sum += int(b)
	}
	return sum
}

// fails runs a scenario with a fault, and reports whether it hit a call.
func (s *scenario) fails(t *testing.T, name string, f gpusim.Fault) bool {
	w := s.stage(t, nil)
	if _, err := w.node.AddFault(f); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.waitIdle(nil)
	hit := w.node.Faults()[0].Hits > 0
	where := fmt.Sprintf("%s %d fails with %s", f.Call, f.Nth, name)
	w.invariants(where)
	w.correct(where)
	if t.Failed() {
		t.Log(w.log)
	}
	return hit
}

// writeCalls are the calls that change hardware, as the virtual driver names them.
func writeCalls() []string {
	return []string{
		"DeviceSetMigMode",
		"DeviceCreateGpuInstanceWithPlacement",
		"GpuInstanceCreateComputeInstance",
		"ComputeInstanceDestroy",
		"GpuInstanceDestroy",
		"DeviceSetComputeMode",
	}
}

// TestKilledInEveryCall kills the daemon and its worker before and after every call that changes hardware, in every
// change: between any two steps, and inside each of them. The next run finishes the change by itself.
func TestKilledInEveryCall(t *testing.T) {
	enumeration.Long(t)
	for _, s := range allScenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			kills := 0
			for i, call := range writeCalls() {
				for _, after := range []bool{false, true} {
					if enumeration.Sampled() && after != (i%2 == 0) {
						continue
					}
					each(t, 1, func(nth int) (hit bool) {
						s.play(t, func(t *testing.T, s *scenario) { hit = s.killed(t, call, nth, after, 0) })
						if hit {
							kills++
						}
						return hit
					})
				}
			}
			if _, stride := enumeration.Part(t.Name()); kills == 0 && stride == 1 {
				t.Error("nothing was ever killed")
			}
			t.Logf("%d kills", kills)
		})
	}
}

// TestKilledAgain kills the daemon a second time, in every call of the run that resumes the change.
func TestKilledAgain(t *testing.T) {
	enumeration.Long(t)
	for _, s := range allScenarios() {
		if s.Name != "one becomes four" && s.Name != "after a boot" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			for _, call := range []string{"ComputeInstanceDestroy", "DeviceCreateGpuInstanceWithPlacement"} {
				first, stride := enumeration.Part(t.Name() + call)
				for nth, hit := 1+first, true; hit && !t.Failed(); nth += stride {
					for again := 1; again <= 4 && hit && !t.Failed(); again += enumeration.Stride(3) {
						s.play(t, func(t *testing.T, s *scenario) { hit = s.killed(t, call, nth, again%2 == 0, again) })
					}
				}
			}
		})
	}
}

// killed kills the daemon in one call, and reports whether that call was made; again is the call of the next run in which it
// is killed too.
func (s *scenario) killed(t *testing.T, call string, nth int, after bool, again int) bool {
	w := s.stage(t, nil)
	where := fmt.Sprintf("killed in %s %d, done %v, and again %d", call, nth, after, again)
	w.hang(gpusim.Fault{Call: call, Nth: nth, After: after})
	w.start()
	synctest.Wait()
	if w.node.Faults()[0].Hits == 0 {
		w.waitIdle(nil)
		w.invariants("nothing was killed")
		return false
	}
	w.kill()
	w.node.ClearFaults(0)
	if again > 0 {
		w.hang(gpusim.Fault{Call: "*Create*", Nth: again, After: after})
		w.startDaemon()
		synctest.Wait()
		if w.node.Faults()[0].Hits > 0 {
			w.kill()
			w.node.ClearFaults(0)
			w.startDaemon()
		}
	} else {
		w.startDaemon()
	}
	w.waitIdle(nil)
	w.invariants(where)
	for i, g := range w.statusNow().GPUs {
		if g.State != "ok" {
			t.Errorf("%s: GPU %d is %s: %s", where, i, g.State, g.Reason)
		}
	}
	w.correct(where)
	if t.Failed() {
		t.Log(w.log)
	}
	return true
}

func (s *staged) hang(f gpusim.Fault) {
	s.Helper()
	f.Do = gpusim.FaultHang
	if _, err := s.node.AddFault(f); err != nil {
		s.Fatal(err)
	}
}

// TestKilledWhileUndoing fails the last creation of a change and kills the daemon in every call of the undo. In the end the
// GPU is as desired, or as it was with a reason.
func TestKilledWhileUndoing(t *testing.T) {
	enumeration.Long(t)
	for _, s := range allScenarios() {
		if s.Boots || s.To[0] == "off" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			for _, call := range sample(writeCalls(), s.Name) {
				each(t, 1, func(nth int) (hit bool) {
					s.play(t, func(t *testing.T, s *scenario) {
						w := s.stage(t, nil)
						where := fmt.Sprintf("a creation failed, and killed in %s %d after that", call, nth)
						if _, err := w.node.AddFault(
							gpusim.Fault{Call: "DeviceCreateGpuInstanceWithPlacement", GPU: "0", Do: gpusim.FaultFail, Code: gpusim.InUse},
						); err != nil {
							t.Fatal(err)
						}
						w.hang(gpusim.Fault{Call: call, GPU: "0", Nth: nth})
						w.start()
						synctest.Wait()
						if hit = w.node.Faults()[1].Hits > 0; hit {
							w.kill()
							w.node.ClearFaults(0)
							w.startDaemon()
						}
						w.waitIdle(nil)
						w.invariants(where)
						w.correct(where)
						if t.Failed() {
							t.Log(w.log)
						}
					})
					return hit
				})
			}
		})
	}
}

// TestGPUsAreChangedInParallel changes eight GPUs completely, with slow calls: it takes as long as
// the slowest of them.
func TestGPUsAreChangedInParallel(t *testing.T) {
	latency := map[string]time.Duration{
		"DeviceCreateGpuInstance*": 900 * time.Millisecond, "GpuInstanceCreateComputeInstance*": 300 * time.Millisecond,
		"GpuInstanceDestroy": 700 * time.Millisecond, "ComputeInstanceDestroy": 200 * time.Millisecond, "*": 2 * time.Millisecond,
	}
	measure := func(t *testing.T, s scenario) (d time.Duration, most int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			w := s.stage(t, latency)
			began := time.Now()
			var answer api.ApplyResult
			refusal := w.do("PUT", "/v1/spec", s.SpecTo(), &answer)
			w.tasks.Wait()
			d, most = time.Since(began), w.concurrent.most
			op := w.waitIdle(answer.Operation)
			if refusal != nil || op == nil || op.State != "done" {
				t.Fatalf("%v, %+v", refusal, op)
			}
			w.answered = true
			w.invariants("all went well")
		})
		return d, most
	}
	// The slowest change destroys seven instances and creates two.
	slowest := scenario{
		Scenario: scenarios.Scenario{
			Boards: []scenarios.Board{{Model: "a100-40", MIG: true}},
			From:   []string{strings.Repeat("1g.5gb ", 7)},
			To:     []string{"3g.20gb 3g.20gb"},
		},
	}
	all := scenario{}
	for i := range 8 {
		all.Boards = append(all.Boards, slowest.Boards[0])
		if i%2 == 0 {
			all.From, all.To = append(all.From, slowest.From[0]), append(all.To, slowest.To[0])
		} else {
			all.From, all.To = append(all.From, "7g.40gb"), append(all.To, "2g.10gb 2g.10gb 1g.5gb")
		}
	}
	one, _ := measure(t, slowest)
	eight, most := measure(t, all)
	if most != 8 {
		t.Errorf("at most %d GPUs were changed at once, want all 8", most)
	}
	if eight > one*13/10 {
		t.Errorf("eight GPUs took %v, the slowest alone takes %v", eight, one)
	}
	t.Logf("eight: %v, the slowest alone: %v", eight, one)
}
