package mig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/test/enumeration"
)

// presentFrom returns present instances from "3g.20gb@4" and flags after a space: u in use, f foreign, s keepable, o without
// compute instances, p pinned, 1 with one compute instance of one slice.
func presentFrom(t testing.TB, p gpu.Profiles, specs ...string) []Present {
	t.Helper()
	var out []Present
	for _, s := range specs {
		what, flags, _ := strings.Cut(s, " ")
		name, at, ok := strings.Cut(what, "@")
		var start uint32
		if _, err := fmt.Sscan(at, &start); !ok || err != nil {
			t.Fatalf("cannot read %q", s)
		}
		b := Present{
			Instance: instance(p, name, start), InUse: strings.Contains(flags, "u"), Foreign: strings.Contains(flags, "f"),
			Keepable: strings.Contains(flags, "s"), Pinned: strings.Contains(flags, "p"),
		}
		if b.InUse {
			b.InUseBy = []step.Subject{step.LeaseOf("lease "+name, "")}
		}
		if strings.Contains(flags, "o") {
			b.Compute = nil
		}
		if strings.Contains(flags, "1") {
			b.Compute = []gpu.ComputeInstance{{Placement: gpu.Placement{Size: 1}}}
		}
		out = append(out, b)
	}
	return out
}

func placedText(list []Placed) string {
	var out []string
	for _, p := range list {
		name := p.Name
		if len(p.Compute) != 0 {
			name += "(" + computeText(p.Compute) + ")"
		}
		out = append(out, fmt.Sprintf("%s@%d", name, p.Placement.Start))
	}
	return strings.Join(out, " ")
}

func destroyedText(p gpu.Profiles, list []Present) string {
	var out []Placed
	for _, b := range list {
		out = append(out, placedOf(p, b.Instance))
	}
	return placedText(out)
}

func TestPlan(t *testing.T) {
	for _, tc := range []struct {
		name                                           string
		p                                              gpu.Profiles
		present                                        []string
		want                                           []Request
		o                                              Options
		keep, extra, complete, destroy, create, layout string
		err                                            string // part of it
	}{
		{name: "nothing to nothing", p: a100()},
		{
			name: "from empty, largest first", p: a100(), want: Requests("1g.5gb", "3g.20gb", "2g.10gb", "1g.5gb"),
			create: "3g.20gb@4 2g.10gb@0 1g.5gb@2 1g.5gb@3", layout: "1g.5gb@2 3g.20gb@4 2g.10gb@0 1g.5gb@3",
		},
		{name: "unchanged", p: a100(), present: []string{"3g.20gb@4", "1g.5gb@0"}, want: Requests("1g.5gb", "3g.20gb"), keep: "1g.5gb@0 3g.20gb@4", layout: "1g.5gb@0 3g.20gb@4"},
		{name: "one more next to one in use", p: a100(), present: []string{"3g.20gb@4 u"}, want: Requests("3g.20gb", "1g.5gb"), keep: "3g.20gb@4", create: "1g.5gb@0", layout: "3g.20gb@4 1g.5gb@0"},
		{
			name: "a single 1g is placed where it blocks no profile", p: classic(), want: Requests("1g.5gb"), create: "1g.5gb@6", layout: "1g.5gb@6",
		},
		{name: "only what is in the way is destroyed", p: a100(), present: []string{"1g.5gb@0", "1g.5gb@5", "2g.10gb@2"}, want: Requests("3g.20gb", "1g.5gb", "2g.10gb"), keep: "1g.5gb@0 2g.10gb@2", destroy: "1g.5gb@5", create: "3g.20gb@4", layout: "3g.20gb@4 1g.5gb@0 2g.10gb@2"},
		{name: "missing compute instances are created", p: a100(), present: []string{"3g.20gb@4 o"}, want: Requests("3g.20gb"), complete: "3g.20gb@4", layout: "3g.20gb@4"},
		{name: "a complete instance is kept before an incomplete one", p: a100(), present: []string{"3g.20gb@0", "3g.20gb@4 o"}, want: Requests("3g.20gb"), keep: "3g.20gb@0", destroy: "3g.20gb@4", layout: "3g.20gb@0"},
		{name: "a keepable instance is kept", p: a100(), present: []string{"1g.5gb@6 s"}, want: Requests("3g.20gb"), extra: "1g.5gb@6", create: "3g.20gb@0", layout: "3g.20gb@0"},
		{name: "a keepable instance is destroyed when its slices are needed", p: a100(), present: []string{"1g.5gb@6 s", "1g.5gb@0 u"}, want: Requests("3g.20gb", "1g.5gb"), keep: "1g.5gb@0", destroy: "1g.5gb@6", create: "3g.20gb@4", layout: "3g.20gb@4 1g.5gb@0"},
		{name: "a keepable me satisfies a request for me", p: a100(), present: []string{"1g.5gb+me@6 s"}, want: Requests("1g.5gb+me"), keep: "1g.5gb+me@6", layout: "1g.5gb+me@6"},
		{name: "a foreign instance is kept as extra", p: a100(), present: []string{"1g.5gb@6 f"}, want: Requests("2g.10gb"), extra: "1g.5gb@6", create: "2g.10gb@4", layout: "2g.10gb@4"},
		{name: "a foreign instance satisfies a request", p: a100(), present: []string{"2g.10gb@0 f"}, want: Requests("2g.10gb"), keep: "2g.10gb@0", layout: "2g.10gb@0"},
		{name: "a foreign instance in the way", p: a100(), present: []string{"1g.5gb@6 f"}, want: Requests("7g.40gb"), err: "cannot place 7g.40gb: 1g.5gb at 6 is not managed by gpushare and would have to be destroyed"},
		{name: "a foreign instance in the way, allowed", p: a100(), present: []string{"1g.5gb@6 f"}, want: Requests("7g.40gb"), o: Options{TakeForeign: true}, destroy: "1g.5gb@6", create: "7g.40gb@0", layout: "7g.40gb@0"},
		{
			name: "an instance in use in the way", p: a100(), present: []string{"1g.5gb@6 u", "1g.5gb@0"}, want: Requests("3g.20gb", "3g.20gb"),
			err: "cannot place 2 × 3g.20gb: 1g.5gb at 6 (lease 1g.5gb) is in use and would have to be destroyed; what fits is 3g.20gb, 1g.5gb at 6",
		},
		{name: "force destroys as few as possible", p: a100(), present: []string{"1g.5gb@6 u", "2g.10gb@0 u"}, want: Requests("3g.20gb", "2g.10gb"), o: Options{Force: true}, keep: "2g.10gb@0", destroy: "1g.5gb@6", create: "3g.20gb@4", layout: "3g.20gb@4 2g.10gb@0"},
		{name: "too many of one profile", p: a100(), want: Requests("3g.20gb", "3g.20gb", "3g.20gb"), err: "this GPU supports at most 2 of 3g.20gb, 3 are requested; what fits is 2 × 3g.20gb"},
		{name: "too many memory slices", p: a100(), want: Requests("4g.20gb", "3g.20gb", "1g.5gb"), err: "they need 9 memory slices, this GPU has 8; what fits is 4g.20gb, 3g.20gb"},
		{name: "too many memory slices of small instances", p: a100(), want: Requests("2g.10gb", "2g.10gb", "2g.10gb", "1g.10gb", "1g.5gb"), err: "they need 9 memory slices"},
		{name: "no combination of placements", p: classic(), want: Requests("4g.20gb", "2g.10gb", "2g.10gb"), err: "8 of 8 memory slices would be enough, but the placements that this GPU supports do not allow this combination"},
		{name: "two me of different profiles", p: a30(), want: Requests("2g.12gb+me", "1g.6gb+me"), err: "at most 1 instance with the attribute me, 2 are requested"},
		{name: "me.all with a plain one", p: rtx(), want: Requests("1g.24gb+me.all", "1g.24gb"), err: "must have a -me profile"},
		{name: "me.all with -me", p: rtx(), want: Requests("1g.24gb+me.all", "1g.24gb-me"), create: "1g.24gb+me.all@0 1g.24gb-me@3", layout: "1g.24gb+me.all@0 1g.24gb-me@3"},
		{name: "more memory than its name says", p: a100(), want: []Request{{Slices: 2, Memory: 10 << 30}}, err: "cannot use MIG profile 2 slices with at least 10 GiB: 2g.10gb has 9.62 GiB; this GPU offers"},
		{name: "unknown profile", p: a30(), want: Requests("3g.20gb"), err: "cannot use MIG profile 3g.20gb: this GPU does not have it; it offers 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb"},
		{name: "a compute instance alone in its instance", p: a100(), want: Requests("1c.3g.20gb"), create: "3g.20gb(1c)@4", layout: "3g.20gb(1c)@4"},
		{
			name: "compute instances share an instance", p: a100(), want: Requests("1c.3g.20gb", "2g.10gb", "1c.3g.20gb", "1c.3g.20gb"),
			create: "3g.20gb(1c+1c+1c)@4 2g.10gb@0", layout: "3g.20gb(1c+1c+1c)@4 2g.10gb@0 3g.20gb(1c+1c+1c)@4 3g.20gb(1c+1c+1c)@4",
		},
		{name: "no more instances than needed", p: a100(), want: Requests("1c.3g.20gb", "2c.3g.20gb", "2c.3g.20gb"), create: "3g.20gb(2c+1c)@0 3g.20gb(2c)@4", layout: "3g.20gb(2c+1c)@0 3g.20gb(2c+1c)@0 3g.20gb(2c)@4"},
		{name: "two existing instances are not merged", p: a100(), present: []string{"3g.20gb@0 1", "3g.20gb@4 1"}, want: Requests("1c.3g.20gb", "1c.3g.20gb"), keep: "3g.20gb(1c)@0 3g.20gb(1c)@4", layout: "3g.20gb(1c)@0 3g.20gb(1c)@4"},
		{name: "a compute instance that does not fit inside gets a new instance", p: a100(), present: []string{"3g.20gb@4 1u"}, want: Requests("1c.3g.20gb", "2c.3g.20gb"), create: "3g.20gb(2c)@0", keep: "3g.20gb(1c)@4", layout: "3g.20gb(1c)@4 3g.20gb(2c)@0"},
		{name: "one more of the same is created inside", p: a100(), present: []string{"3g.20gb@4 1u"}, want: Requests("1c.3g.20gb", "1c.3g.20gb"), complete: "3g.20gb(1c+1c)@4", layout: "3g.20gb(1c+1c)@4 3g.20gb(1c+1c)@4"},
		{name: "compute instances at a placement", p: a100(), want: []Request{{Name: "1c.3g.20gb", At: &gpu.Placement{Size: 4}}}, create: "3g.20gb(1c)@0", layout: "3g.20gb(1c)@0"},
		{name: "compute instances at an unsupported placement", p: a100(), want: []Request{{Name: "1c.3g.20gb", At: &gpu.Placement{Start: 2, Size: 4}}}, err: "1c.3g.20gb at 2 is not a placement that this GPU supports"},
		{name: "an unsupported compute size", p: a100(), want: Requests("3c.4g.20gb"), err: "cannot use MIG profile 3c.4g.20gb: 4g.20gb has no compute instances of 3 slices"},
		{name: "too many compute instances", p: a100(), want: Requests("1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb"), err: "this GPU supports at most 6 of 1c.3g.20gb, 7 are requested; what fits is 6 × 1c.3g.20gb"},
		{name: "compute instances that cannot be combined", p: a100(), want: Requests("2c.3g.20gb", "2c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb"), err: "this GPU supports at most 2 of 3g.20gb, and the 7 requested compute slices do not fit into their 3 each; what fits is 2 × 2c.3g.20gb, 2 × 1c.3g.20gb"},
		{name: "force does not destroy a pinned instance", p: a100(), present: []string{"1g.5gb@6 p"}, want: Requests("7g.40gb"), o: Options{Force: true}, err: "1g.5gb at 6 is pinned"},
		{name: "by properties, the smallest", p: a100(), want: []Request{{Slices: 1, Memory: 6 << 30}}, create: "1g.10gb@6", layout: "1g.10gb@6"},
		{name: "by properties, an existing one", p: a100(), present: []string{"1g.10gb@2"}, want: []Request{{Slices: 1}}, keep: "1g.10gb@2", layout: "1g.10gb@2"},
		{name: "at a placement", p: a100(), want: []Request{{Name: "1g.5gb", At: &gpu.Placement{Start: 2, Size: 1}}}, create: "1g.5gb@2", layout: "1g.5gb@2"},
		{name: "by properties at a start, the smallest", p: a100(), want: []Request{{Slices: 1, At: &gpu.Placement{Start: 2}}}, create: "1g.5gb@2", layout: "1g.5gb@2"},
		{name: "by properties at a start, an existing larger one", p: a100(), present: []string{"1g.10gb@2 u"}, want: []Request{{Slices: 1, At: &gpu.Placement{Start: 2}}}, keep: "1g.10gb@2", layout: "1g.10gb@2"},
		{name: "at a start that no match has", p: a100(), want: []Request{{Slices: 2, At: &gpu.Placement{Start: 1}}}, err: "2 slices at 1 is not a placement that this GPU supports"},
		{name: "at an unsupported placement", p: a100(), want: []Request{{Name: "2g.10gb", At: &gpu.Placement{Start: 1, Size: 2}}}, err: "2g.10gb at 1 is not a placement that this GPU supports"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := Plan(tc.p, presentFrom(t, tc.p, tc.present...), tc.want, tc.o)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{
				"keep": placedText(r.Keep), "extra": placedText(r.Extra), "complete": placedText(r.Complete),
				"destroy": destroyedText(tc.p, r.Destroy), "create": placedText(r.Create), "layout": placedText(r.Layout),
			}
			want := map[string]string{
				"keep":     tc.keep,
				"extra":    tc.extra,
				"complete": tc.complete,
				"destroy":  tc.destroy,
				"create":   tc.create,
				"layout":   tc.layout,
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			if r.Empty() != (tc.complete+tc.destroy+tc.create == "") {
				t.Errorf("Empty() = %v", r.Empty())
			}
		})
	}
}

func TestInfeasibleIsInUseOnlyWhenForceHelps(t *testing.T) {
	p := a100()
	_, err := Plan(p, presentFrom(t, p, "1g.5gb@0 u"), Requests("7g.40gb"), Options{})
	if !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("%v is not in use", err)
	}
	_, err = Plan(p, presentFrom(t, p, "1g.5gb@0 u"), Requests("7g.40gb", "1g.5gb"), Options{})
	if err == nil || errors.Is(err, gpu.ErrInUse) {
		t.Errorf("%v is in use, which says that force would help", err)
	}
}

// presentOf returns the present instances of a brute-force situation.
func presentOf(p gpu.Profiles, s situation) []Present {
	var out []Present
	for i, b := range s.present {
		out = append(out, Present{
			Instance: instance(p, p.GI[b.profile].Name, b.start),
			InUse:    s.inUse[i],
			Foreign:  s.foreign[i],
			Keepable: s.keepable[i],
		})
	}
	return out
}

// costOf computes a plan's cost from its lists alone.
func costOf(p gpu.Profiles, r Result) cost {
	c := cost{disturbed: len(r.Disturbed), destroyed: len(r.Destroy)}
	var state []slot
	for _, list := range [][]Placed{r.Keep, r.Extra, r.Complete, r.Create} {
		for _, x := range list {
			for i, q := range p.GI {
				if q.ID == x.ProfileID {
					state = append(state, slot{i, x.Placement.Start})
				}
			}
		}
	}
	for _, x := range r.Create {
		for _, q := range p.GI {
			if q.ID == x.ProfileID {
				c.created += q.Memory
			}
		}
	}
	for i, q := range p.GI {
		open := 0
		for _, place := range q.Placements {
			if legal(p, append(state[:len(state):len(state)], slot{i, place.Start})) {
				open++
			}
		}
		if open == 0 {
			c.closed++
		}
		c.taken += len(q.Placements) - open
	}
	if !legal(p, state) {
		c.disturbed = 1000
	}
	return c
}

// counted lists the multisets of some states, each once.
func counted(all [][]slot) []map[int]int {
	seen := map[string]bool{}
	var out []map[int]int
	for _, s := range all {
		m := map[int]int{}
		for _, x := range s {
			m[x.profile]++
		}
		if k := fmt.Sprint(m); !seen[k] {
			seen[k] = true
			out = append(out, m)
		}
	}
	return out
}

func requestsFor(p gpu.Profiles, counts map[int]int) []Request {
	var out []Request
	for q := range p.GI {
		for range counts[q] {
			out = append(out, Request{Name: p.GI[q].Name})
		}
	}
	return out
}

func idle(state []slot) situation {
	n := len(state)
	return situation{present: state, inUse: make([]bool, n), foreign: make([]bool, n), keepable: make([]bool, n)}
}

// TestEveryTransition compares the planner with brute force on every state and every target of the classic grid, and
// checks the figures that make exact planning worth it.
func TestEveryTransition(t *testing.T) {
	p := classic()
	all := states(p)
	targets := counted(all)
	if len(all) != 298 || len(targets) != 38 {
		t.Fatalf("%d states and %d multisets, want 298 and 38", len(all), len(targets))
	}
	// Without keepable or foreign instances only states with exactly the requested counts are possible.
	byCounts := map[string][][]slot{}
	for _, state := range all {
		m := map[int]int{}
		for _, x := range state {
			m[x.profile]++
		}
		byCounts[fmt.Sprint(m)] = append(byCounts[fmt.Sprint(m)], state)
	}
	var pairs, destroyed, cleared, additive, addDestroyed, addCleared, addNone int
	var pinned, pinnedOK int
	for i := 0; i < len(all); i += enumeration.Stride(17) {
		s := idle(all[i])
		have := map[int]int{}
		for _, x := range all[i] {
			have[x.profile]++
		}
		for _, target := range targets {
			goals := byCounts[fmt.Sprint(target)]
			r, err := Plan(p, presentOf(p, s), requestsFor(p, target), Options{})
			if err != nil {
				t.Fatalf("%v to %v: %v", all[i], target, err)
			}
			want, _ := bruteForce(p, goals, s, target)
			if got := costOf(p, r); got != want {
				t.Fatalf("%v to %v: cost %+v, brute force finds %+v", all[i], target, got, want)
			}
			same, superset := len(have) == len(target), true
			for q, n := range have {
				same = same && target[q] == n
				superset = superset && target[q] >= n
			}
			if same {
				continue
			}
			pairs++
			destroyed += len(r.Destroy)
			cleared += len(all[i])
			if superset && len(have) != 0 {
				additive++
				addDestroyed += len(r.Destroy)
				addCleared += len(all[i])
				if len(r.Destroy) == 0 {
					addNone++
				}
			}
			for k := range all[i] {
				busy := idle(all[i])
				busy.inUse[k] = true
				_, err := Plan(p, presentOf(p, busy), requestsFor(p, target), Options{})
				if want, ok := bruteForce(p, goals, busy, target); ok != (err == nil) {
					t.Fatalf("%v with %d busy to %v: %v, brute force finds %v %v", all[i], k, target, err, want, ok)
				}
				pinned++
				if err == nil {
					pinnedOK++
				}
			}
		}
	}
	mean := func(n, of int) float64 { return float64(n) / float64(of) }
	t.Logf(
		"%d transitions: %.2f destroyed on average, %.2f by clearing; %d additive: %.2f and %.2f, %.0f %% without any; with one pinned %.0f %% feasible",
		pairs,
		mean(destroyed, pairs),
		mean(cleared, pairs),
		additive,
		mean(addDestroyed, additive),
		mean(addCleared, additive),
		100*mean(addNone, additive),
		100*mean(pinnedOK, pinned),
	)
	if !enumeration.Sampled() {
		got := fmt.Sprintf(
			"%d %.2f %.2f %d %.2f %.2f %.0f %.0f", pairs, mean(destroyed, pairs), mean(cleared, pairs), additive,
			mean(addDestroyed, additive), mean(addCleared, additive), 100*mean(addNone, additive), 100*mean(pinnedOK, pinned),
		)
		if want := "11026 2.10 3.37 1873 0.37 2.68 70 51"; got != want {
			t.Errorf("figures are %s, want %s", got, want)
		}
	}
}

// TestAgainstBruteForce compares plans with brute force for random flags and authority on grids of 4, 8 and 12 slices.
func TestAgainstBruteForce(t *testing.T) {
	for _, dev := range grids() {
		all := states(dev.p)
		t.Run(dev.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s := idle(rapid.SampledFrom(all).Draw(t, "present"))
				for i := range s.present {
					s.inUse[i] = rapid.Bool().Draw(t, "in use")
					s.foreign[i] = rapid.IntRange(0, 4).Draw(t, "foreign") == 0
					s.keepable[i] = rapid.IntRange(0, 2).Draw(t, "keepable") == 0
				}
				s.force, s.takeForeign = rapid.Bool().Draw(t, "force"), rapid.Bool().Draw(t, "take foreign")
				target := map[int]int{}
				if rapid.Bool().Draw(t, "legal") {
					for _, x := range rapid.SampledFrom(all).Draw(t, "target") {
						target[x.profile]++
					}
				} else {
					for range rapid.IntRange(0, 6).Draw(t, "requests") {
						target[rapid.IntRange(0, len(dev.p.GI)-1).Draw(t, "profile")]++
					}
				}
				present, o := presentOf(dev.p, s), Options{Force: s.force, TakeForeign: s.takeForeign}
				r, err := Plan(dev.p, present, requestsFor(dev.p, target), o)
				want, ok := bruteForce(dev.p, all, s, target)
				if ok != (err == nil) {
					t.Fatalf("got %v, brute force finds %+v %v", err, want, ok)
				}
				if err == nil {
					if got := costOf(dev.p, r); got != want {
						t.Fatalf("cost %+v, brute force finds %+v", got, want)
					}
					checkResult(t, dev.p, present, r, o)
					return
				}
				checkNearest(t, dev.p, all, s, target, present, o, err)
			})
		})
	}
}

// checkResult checks the invariants of every plan.
func checkResult(t *rapid.T, p gpu.Profiles, present []Present, r Result, o Options) {
	if len(r.Keep)+len(r.Extra)+len(r.Complete)+len(r.Destroy) != len(present) {
		t.Fatalf("%d are present, the plan has %+v", len(present), r)
	}
	if len(r.Disturbed) != 0 && !o.Force {
		t.Fatal("disturbs without force")
	}
	var after []Present
	for _, list := range [][]Placed{r.Keep, r.Complete, r.Create} {
		for _, x := range list {
			after = append(after, Present{Instance: instance(p, x.Name, x.Placement.Start)})
		}
	}
	for _, x := range r.Extra {
		after = append(after, Present{Instance: instance(p, x.Name, x.Placement.Start), Keepable: true})
	}
	var want []Request
	for _, x := range r.Layout {
		want = append(want, Request{Name: x.Name})
	}
	again, err := Plan(p, after, want, Options{})
	if err != nil || !again.Empty() {
		t.Fatalf("the second plan is %+v, %v", again, err)
	}
}

// checkNearest checks that Plan accepts the nearest layout, that it is a part of the requests with what must be kept, and
// that no larger part fits.
func checkNearest(t *rapid.T, p gpu.Profiles, all [][]slot, s situation, target map[int]int, present []Present, o Options, err error) {
	e, ok := errors.AsType[*Infeasible](err)
	if !ok {
		t.Fatal(err)
	}
	if e.Reason == "" {
		t.Fatal("no reason")
	}
	if _, err := Plan(p, present, e.Nearest, o); err != nil {
		t.Fatalf("the nearest layout %v is refused: %v", e.Nearest, err)
	}
	parts := 0 // the others are pinned instances that are kept
	for _, w := range e.Nearest {
		if w.At == nil {
			parts++
		}
	}
	total := 0
	for _, n := range target {
		total += n
	}
	if parts == len(e.Nearest) && parts == total {
		t.Fatalf("the nearest layout %v has all requests of %v", e.Nearest, target)
	}
	// No part with one more instance may fit: brute force with the pinned instances as keepable shows that.
	pinnedKept := s
	pinnedKept.keepable = make([]bool, len(s.present))
	for i := range s.present {
		pinnedKept.keepable[i] = s.keepable[i] || !s.force && s.inUse[i]
	}
	for _, state := range counted(all) {
		n, part := 0, true
		for q, k := range state {
			n += k
			part = part && k <= target[q]
		}
		if part && n > parts {
			if _, ok := bruteForce(p, all, pinnedKept, state); ok {
				t.Fatalf("the nearest layout %v has %d instances, but %v would fit", e.Nearest, parts, state)
			}
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, bc := range []struct {
		name    string
		p       gpu.Profiles
		present []string
		want    []Request
	}{
		{"keep", a100(), []string{"3g.20gb@4", "2g.10gb@0", "1g.5gb@2", "1g.5gb@3"}, Requests("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")},
		{"mixed", a100(), []string{"3g.20gb@0 u", "1g.5gb@4", "1g.5gb@5"}, Requests("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb+me")},
		{"rtx", rtx(), nil, Requests("1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "1g.24gb+gfx")},
		{"infeasible", a100(), []string{"1g.5gb@6 u"}, Requests("4g.20gb", "3g.20gb")},
	} {
		b.Run(bc.name, func(b *testing.B) {
			present := presentFrom(b, bc.p, bc.present...)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Plan(bc.p, present, bc.want, Options{})
			}
		})
	}
}

// Several profiles have the same properties and use the same slices: the most of them that fit is not the sum of their numbers.
func TestLimitOfProperties(t *testing.T) {
	for n, want := range map[int]string{8: "at most 7 of 1 slice, 8 are requested", 11: "at most 7 of 1 slice, 11 are requested", 12: "at most 7 of 1 slice, 12 are requested", 7: ""} {
		_, err := Plan(a100(), nil, slices.Repeat([]Request{{Slices: 1}}, n), Options{})
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %q", n, err, want)
		}
	}
	if _, err := Plan(a100(), nil, slices.Repeat([]Request{{Slices: 1, Memory: 5 << 30}}, 5), Options{}); err == nil ||
		!strings.Contains(err.Error(), "at most 4 of 1g.10gb, 5 are requested") {
		t.Errorf("one profile: %v", err)
	}
}
