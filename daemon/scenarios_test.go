package daemon

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/scenarios"
)

// stranger is the process that keeps an instance busy. No real process has this number.
const stranger = 1 << 22

// scenario is one change of a node, and here it is carried out.
type scenario struct{ scenarios.Scenario }

func allScenarios() []scenario {
	var out []scenario
	for _, s := range scenarios.All() {
		out = append(out, scenario{s})
	}
	return out
}

// staged is a scenario whose node is as it is before the change.
type staged struct {
	*virtual
	*scenario
	before   []string // layouts
	beside   []string // instances of others on GPU 0, by name
	instance uint32   // of the busy one, its id
	refused  bool     // the request was not granted
	known    bool     // it was answered at all
}

// stage makes the node as the scenario begins.
func (s *scenario) stage(t *testing.T, latency map[string]time.Duration) *staged {
	t.Helper()
	w := newVirtual(t, nil, s.Boards...)
	w.live()
	if _, op, refusal := w.apply(s.SpecFrom(), ""); refusal != nil || op != nil && op.State != "done" {
		t.Fatalf("cannot set the stage: %v, %+v\n%s", refusal, op, w.log)
	}
	own := *s // Who is at work may go; the others that play this have theirs.
	out := &staged{virtual: w, scenario: &own}
	if s.Foreign != "" {
		other := w.node.Driver(77)
		made := false
		g := w.truth()[0]
		for _, p := range g.Model.GPUProfiles().GI {
			for _, at := range p.Placements {
				if p.Name == s.Foreign && !made {
					_, err := other.CreateInstance(t.Context(), w.ids[0], gpu.NewInstance{ProfileID: p.ID, Placement: at})
					made = err == nil
				}
			}
		}
		_ = other.Close()
		if !made {
			t.Fatal("there is no room for somebody else's instance")
		}
		out.beside = []string{s.Foreign}
	}
	if s.Busy != "" {
		g := w.truth()[0]
		for _, in := range g.Instances {
			if len(in.Compute) == 1 && profileName(new(g.Model.GPUProfiles()), in.ProfileID) == s.Busy {
				out.instance = in.ID
				if _, err := w.node.OpenContext(gpusim.ContextSpec{PID: stranger, Device: string(in.Compute[0].UUID)}); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		if out.instance == 0 {
			t.Fatalf("there is no %s to be in", s.Busy)
		}
	}
	for i := range s.Boards {
		out.before = append(out.before, w.layoutOf(i))
	}
	for pattern, d := range latency {
		if err := w.node.SetLatency(pattern, d); err != nil {
			t.Fatal(err)
		}
	}
	w.port.mu.Lock()
	w.port.fit = map[string]bool{}
	for _, gib := range []int{scenarios.MemoryFrom, scenarios.MemoryTo} {
		w.port.fit[fmt.Sprintf(`{"CPUQuota":null,"CPUWeight":null,"CPUs":"","MemoryMax":%d,"MemoryHigh":null,"SwapMax":null,"TasksMax":null,"IOWeight":null}`, gib<<30)] = true
	}
	w.port.mu.Unlock()
	return out
}

// begin makes happen what the scenario is about, and does not wait for it to end.
func (s *staged) start() {
	s.Helper()
	if s.Boots {
		if s.Reloads {
			s.reload()
		} else {
			s.reboot()
		}
		s.turn(s.ctx)
		s.known = true
		return
	}
	refusal := s.do("PUT", "/v1/spec"+s.Query(), s.SpecTo(), nil)
	s.known, s.refused = true, refusal != nil
}
