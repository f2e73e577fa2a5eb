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
		{name: "no room", gpus: [][]string{{"7g.40gb@0 u"}}, want: "1g.5gb", at: -1},
		{name: "what is in use is not given twice", gpus: [][]string{{"3g.20gb@0 u", "3g.20gb@4 u"}}, want: "3g.20gb", at: -1},
		{name: "an idle one that is there", gpus: [][]string{{}, {"3g.20gb@0 u", "2g.10gb@4"}}, want: "2g.10gb", at: 1, got: "keep 2g.10gb@4"},
		{name: "the GPU that is begun, so that the whole one stays whole", gpus: [][]string{{}, {"1g.5gb@6 u"}}, want: "1g.5gb", at: 1, got: "create 1g.5gb@4"},
		{name: "free room before room that others go for", gpus: [][]string{{"4g.20gb@0", "3g.20gb@4 u"}, {"2g.10gb@0 u"}}, want: "3g.20gb", at: 1, got: "create 3g.20gb@4"},
		{name: "an idle one goes when nothing else helps", gpus: [][]string{{"7g.40gb@0 u"}, {"1g.5gb@1", "3g.20gb@4 u"}}, want: "3g.20gb", at: 1, got: "create 3g.20gb@0"},
		{name: "the media extension is had once", gpus: [][]string{{"1g.5gb+me@0 u"}, {"3g.20gb@0 u"}}, want: "1g.5gb+me", at: 1, got: "create 1g.5gb+me@6"},
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
