package daemon

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
)

// stranger is the process that keeps an instance busy. No real process has this number.
const stranger = 1 << 22

// scenario is one change of a node: from one layout to another, GPU by GPU.
type scenario struct {
	name   string
	boards []board
	// from and to say for each GPU which instances it has, between spaces; "off": none and no MIG mode; "": the GPU is
	// nobody's business yet.
	from, to []string
	query    string // of the request: authority
	busy     string // the profile of an instance of GPU 0 that somebody is in
	foreign  string // the profile of an instance of GPU 0 that somebody else makes beside ours
	boots    bool   // what happens is a boot, and no request
	reloads  bool   // it is not the host but the driver that is loaded anew
}

// scenarios are the twelve changes that every call of fails once.
func scenarios() []scenario {
	a100, h100 := board{"a100-40", true}, board{"h100-80", true}
	a100Off, h100Off := board{"a100-40", false}, board{"h100-80", false}
	one := func(s string) []string { return []string{s} }
	return []scenario{
		{name: "one more beside what is there", boards: []board{a100}, from: one("3g.20gb"), to: one("3g.20gb 1g.5gb")},
		{
			name: "one more beside somebody who works", boards: []board{a100},
			from: one("3g.20gb 1g.5gb 1g.5gb 1g.5gb"), to: one("3g.20gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb"), busy: "3g.20gb",
		},
		{name: "seven from nothing", boards: []board{a100}, from: one(""), to: one(strings.Repeat("1g.5gb ", 7))},
		{name: "seven become one", boards: []board{a100}, from: one(strings.Repeat("1g.5gb ", 7)), to: one("7g.40gb")},
		{name: "one becomes four", boards: []board{a100}, from: one("7g.40gb"), to: one("3g.20gb 2g.10gb 1g.5gb 1g.5gb")},
		{name: "round somebody who works", boards: []board{a100}, from: one("1g.5gb 3g.20gb 1g.10gb"), to: one("1g.5gb 2g.10gb 2g.10gb"), busy: "1g.5gb"},
		{name: "two GPUs at once", boards: []board{a100, a100}, from: []string{"7g.40gb", "3g.20gb 3g.20gb"}, to: []string{"4g.20gb 3g.20gb", "2g.10gb 2g.10gb 1g.5gb"}},
		{name: "the mode and two", boards: []board{h100Off}, from: one("off"), to: one("3g.40gb 1g.10gb")},
		{name: "two go, and the mode", boards: []board{h100}, from: one("3g.40gb 4g.40gb"), to: one("off")},
		{name: "the mode by a reset", boards: []board{a100Off, a100}, from: []string{"off", "3g.20gb"}, to: []string{"3g.20gb", "3g.20gb"}, query: "?allow-reset=1"},
		{name: "compute instances that share", boards: []board{a100}, from: one("1c.3g.20gb 2c.3g.20gb"), to: one("1c.3g.20gb 1c.3g.20gb 1c.3g.20gb")},
		{name: "after a boot", boards: []board{a100, a100}, from: []string{"3g.20gb 2g.10gb", "1g.5gb 4g.20gb"}, to: []string{"3g.20gb 2g.10gb", "1g.5gb 4g.20gb"}, boots: true},
		{name: "after a reload of the driver", boards: []board{a100}, from: one("3g.20gb 1g.10gb"), to: one("3g.20gb 1g.10gb"), boots: true, reloads: true},
	}
}

// spec writes layouts as a spec. memory is the tenant's limit, so that walls change with the hardware.
func (s *scenario) spec(layouts []string, memory int) string {
	var b strings.Builder
	b.WriteString("version: v1\nnode: {enforce: on, guard: \"off\"}\ngpus:\n")
	grants := map[string]bool{}
	for i, l := range layouts {
		switch l {
		case "":
		case "off":
			fmt.Fprintf(&b, "  - {select: {index: %d}, mode: timeslice}\n", i)
		default:
			list := strings.Fields(l)
			fmt.Fprintf(&b, "  - {select: {index: %d}, mode: mig, mig: {layout: [%s]}}\n", i, strings.Join(list, ", "))
			for _, p := range list {
				if !strings.Contains(p, "c.") {
					grants[p] = true
				}
			}
		}
	}
	fmt.Fprintf(&b, "tenants:\n  - name: red\n    memory: {max: %dGiB}\n    gpu:\n", memory)
	for _, p := range sorted(grants) {
		fmt.Fprintf(&b, "      - {name: g%s, mig: %s}\n", strings.ReplaceAll(p, ".", "-"), p)
	}
	if len(grants) == 0 {
		b.WriteString("      - {name: slices, timeslice: {share: 50%, memory: 4GiB}}\n")
	}
	return b.String()
}

func sorted(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

const (
	memoryFrom = 8
	memoryTo   = 9
)

func (s *scenario) specFrom() string { return s.spec(s.from, memoryFrom) }

func (s *scenario) specTo() string {
	if s.boots {
		return s.specFrom()
	}
	return s.spec(s.to, memoryTo)
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
	w := newVirtual(t, nil, s.boards...)
	w.live()
	if _, op, refusal := w.apply(s.specFrom(), ""); refusal != nil || op != nil && op.State != "done" {
		t.Fatalf("cannot set the stage: %v, %+v\n%s", refusal, op, w.log)
	}
	own := *s // Who is at work may go; the others that play this have theirs.
	out := &staged{virtual: w, scenario: &own}
	if s.foreign != "" {
		other := w.node.Driver(77)
		made := false
		g := w.truth()[0]
		for _, p := range g.Model.GPUProfiles().GI {
			for _, at := range p.Placements {
				if p.Name == s.foreign && !made {
					_, err := other.CreateInstance(t.Context(), w.ids[0], gpu.NewInstance{ProfileID: p.ID, Placement: at})
					made = err == nil
				}
			}
		}
		_ = other.Close()
		if !made {
			t.Fatal("there is no room for somebody else's instance")
		}
		out.beside = []string{s.foreign}
	}
	if s.busy != "" {
		g := w.truth()[0]
		for _, in := range g.Instances {
			if len(in.Compute) == 1 && profileName(new(g.Model.GPUProfiles()), in.ProfileID) == s.busy {
				out.instance = in.ID
				if _, err := w.node.OpenContext(gpusim.ContextSpec{PID: stranger, Device: string(in.Compute[0].UUID)}); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		if out.instance == 0 {
			t.Fatalf("there is no %s to be in", s.busy)
		}
	}
	for i := range s.boards {
		out.before = append(out.before, w.layoutOf(i))
	}
	for pattern, d := range latency {
		if err := w.node.SetLatency(pattern, d); err != nil {
			t.Fatal(err)
		}
	}
	w.port.mu.Lock()
	w.port.fit = map[string]bool{}
	for _, gib := range []int{memoryFrom, memoryTo} {
		w.port.fit[fmt.Sprintf(`{"CPUQuota":null,"CPUWeight":null,"CPUs":"","MemoryMax":%d,"MemoryHigh":null,"SwapMax":null,"TasksMax":null,"IOWeight":null}`, gib<<30)] = true
	}
	w.port.mu.Unlock()
	return out
}

// begin makes happen what the scenario is about, and does not wait for it to end.
func (s *staged) start() {
	s.Helper()
	if s.boots {
		if s.reloads {
			s.reload()
		} else {
			s.reboot()
		}
		s.turn(s.ctx)
		s.known = true
		return
	}
	refusal := s.do("PUT", "/v1/spec"+s.query, s.specTo(), nil)
	s.known, s.refused = true, refusal != nil
}

// wanted is which instances a GPU has after the change, by name.
func (s *scenario) wanted(i int, beside []string) []string {
	var out []string
	if s.to[i] != "off" {
		out = strings.Fields(s.to[i])
	}
	if i == 0 {
		out = append(out, beside...)
	}
	slices.Sort(out)
	return out
}
