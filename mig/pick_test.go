package mig

import (
	"testing"
)

func TestPick(t *testing.T) {
	p := a100()
	for _, tc := range []struct {
		name string
		gpus [][]string
		want string
		at   int
		got  string // created, or kept
	}{
		{name: "no GPU", want: "1g.5gb", at: -1},
		{name: "no free placement", gpus: [][]string{{"7g.40gb@0 u"}}, want: "1g.5gb", at: -1},
		{name: "an instance in use is not given again", gpus: [][]string{{"3g.20gb@0 u", "3g.20gb@4 u"}}, want: "3g.20gb", at: -1},
		{name: "an existing idle instance", gpus: [][]string{{}, {"3g.20gb@0 u", "2g.10gb@4"}}, want: "2g.10gb", at: 1, got: "keep 2g.10gb@4"},
		{name: "the GPU in use, so that the empty one is kept empty", gpus: [][]string{{}, {"1g.5gb@6 u"}}, want: "1g.5gb", at: 1, got: "create 1g.5gb@4"},
		{name: "free slices before slices of idle instances", gpus: [][]string{{"4g.20gb@0", "3g.20gb@4 u"}, {"2g.10gb@0 u"}}, want: "3g.20gb", at: 1, got: "create 3g.20gb@4"},
		{name: "an idle instance is destroyed when nothing else helps", gpus: [][]string{{"7g.40gb@0 u"}, {"1g.5gb@1", "3g.20gb@4 u"}}, want: "3g.20gb", at: 1, got: "create 3g.20gb@0"},
		{name: "only one media extension", gpus: [][]string{{"1g.5gb+me@0 u"}, {"3g.20gb@0 u"}}, want: "1g.5gb+me", at: 1, got: "create 1g.5gb+me@6"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var list []Candidate
			for _, g := range tc.gpus {
				list = append(list, Candidate{p, presentFrom(t, p, g...)})
			}
			at, r := Pick(list, Request{Name: tc.want})
			got := ""
			switch {
			case len(r.Create) == 1:
				got = "create " + placedText(r.Create)
			case at >= 0:
				got = "keep " + placedText(r.Layout)
			}
			if at != tc.at || got != tc.got {
				t.Errorf("on %d %q, want %d %q", at, got, tc.at, tc.got)
			}
			if len(r.Disturbed) != 0 {
				t.Errorf("disturbs %v", r.Disturbed)
			}
		})
	}
}
