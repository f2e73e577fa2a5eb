package mig

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func fitsText(f Fragmentation) []string {
	var out []string
	for _, x := range f.Profiles {
		s := fmt.Sprintf("%s %d/%d", x.Profile.Name, x.Now, x.Moved)
		for _, m := range x.Moves {
			s += fmt.Sprintf(" %s@%d>%d", m.From.Name, m.From.Placement.Start, m.To.Placement.Start)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

func TestFragment(t *testing.T) {
	for _, tc := range []struct {
		name    string
		present string // between commas
		free    uint32
		score   string
		want    []string
	}{
		{name: "empty", free: 8, score: "0.00", want: []string{"1g.5gb 7/7", "2g.10gb 3/3", "3g.20gb 2/2", "4g.20gb 1/1", "7g.40gb 1/1"}},
		{name: "full", present: "7g.40gb@0", free: 0, score: "0.00"},
		{
			name: "an idle instance in the middle of each half", present: "1g.5gb@1,1g.5gb@5", free: 6, score: "0.50",
			want: []string{"1g.5gb 5/5", "2g.10gb 1/2 1g.5gb@1>4", "3g.20gb 0/1 1g.5gb@5>0", "4g.20gb 0/1 1g.5gb@1>4"},
		},
		{
			name: "instances in use are not moved", present: "1g.5gb@1 u,1g.5gb@5 u", free: 6, score: "0.00",
			want: []string{"1g.5gb 5/5", "2g.10gb 1/1"},
		},
		{
			name: "one of them in use", present: "1g.5gb@1,1g.5gb@5 u", free: 6, score: "0.50",
			want: []string{"1g.5gb 5/5", "2g.10gb 1/2 1g.5gb@1>4", "3g.20gb 0/1 1g.5gb@1>4", "4g.20gb 0/1 1g.5gb@1>4"},
		},
		{name: "foreign instances are not moved", present: "1g.5gb@1 f,1g.5gb@5 f", free: 6, score: "0.00", want: []string{"1g.5gb 5/5", "2g.10gb 1/1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := classic()
			var specs []string
			if tc.present != "" {
				specs = strings.Split(tc.present, ",")
			}
			f, err := Fragment(p, presentFrom(t, p, specs...))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, fitsText(f)); d != "" {
				t.Error(d)
			}
			if got := fmt.Sprintf("%.2f", f.Score); f.Free != tc.free || got != tc.score {
				t.Errorf("%d free, score %s", f.Free, got)
			}
		})
	}
}

// TestFragmentAgainstBruteForce compares how many more fit, and how many would, with all legal states.
func TestFragmentAgainstBruteForce(t *testing.T) {
	p := a100()
	all := states(p)
	counts := func(s []slot) [8]int {
		var n [8]int
		for _, x := range s {
			n[x.profile]++
		}
		return n
	}
	rapid.Check(t, func(t *rapid.T) {
		s := idle(rapid.SampledFrom(all).Draw(t, "present"))
		for i := range s.present {
			s.inUse[i] = rapid.Bool().Draw(t, "in use")
		}
		have := counts(s.present)
		now, moved := [8]int{}, [8]int{}
		for _, state := range all {
			n, extra, kind, ok := counts(state), 0, -1, true
			for q := range have {
				switch d := n[q] - have[q]; {
				case d < 0 || d > 0 && kind >= 0:
					ok = false
				case d > 0:
					extra, kind = d, q
				}
			}
			if !ok || kind < 0 {
				continue
			}
			all, pinned := true, true
			for i, b := range s.present {
				in := slices.Contains(state, b)
				all, pinned = all && in, pinned && (in || !s.inUse[i])
			}
			if all {
				now[kind] = max(now[kind], extra)
			}
			if pinned {
				moved[kind] = max(moved[kind], extra)
			}
		}
		f, err := Fragment(p, presentOf(p, s))
		if err != nil {
			t.Fatal(err)
		}
		got, gotMoved := [8]int{}, [8]int{}
		for _, x := range f.Profiles {
			for q := range p.GI {
				if p.GI[q].ID == x.Profile.ID {
					got[q], gotMoved[q] = x.Now, x.Moved
				}
			}
			if (x.Moved > x.Now) != (len(x.Moves) > 0) {
				t.Fatalf("%s: %d now, %d moved by %v", x.Profile.Name, x.Now, x.Moved, x.Moves)
			}
		}
		if got != now || gotMoved != moved {
			t.Fatalf("now %v, moved %v; brute force finds %v and %v", got, gotMoved, now, moved)
		}
	})
}
