package main

import (
	"math"
	"strings"
	"testing"
)

func TestFigureIsTheWorstRun(t *testing.T) {
	two, ninety := 2.0, 97.0
	for _, c := range []struct {
		name   string
		f      Figure
		value  float64
		met    bool
		header string
	}{
		{"lower is better", figure("x", []float64{1, 2.5, 2}, "s", "lower", &two), 2.5, false, "≤ 2"},
		{"lower, exactly the target", figure("x", []float64{1, 2}, "s", "lower", &two), 2, true, "≤ 2"},
		{"higher is better", figure("x", []float64{99, 96, 98}, "%", "higher", &ninety), 96, false, "≥ 97"},
		{"higher, met", higher("x", 98, "%", 97), 98, true, "≥ 97"},
		{"lower, met", lower("x", 1, "s", 2), 1, true, "≤ 2"},
	} {
		if c.f.Value != c.value || c.f.Met == nil || *c.f.Met != c.met || c.f.target() != c.header {
			t.Errorf("%s: value %v, met %v, %s", c.name, c.f.Value, *c.f.Met, c.f.target())
		}
	}
	if f := figure("x", []float64{1}, "s", "lower", nil); f.Met != nil {
		t.Error("a figure without a target is met or missed")
	}
}

func TestShowNamesMissedTargets(t *testing.T) {
	two := 2.0
	a, b := figure("RMS", []float64{1, 3}, "points", "lower", &two), figure("RMS", []float64{0.5}, "points", "lower", &two)
	a.Scenario, b.Scenario = "30/70", "10/90"
	var out strings.Builder
	show(&out, []Figure{lower("single", 5, "ms", 2), a, b}, false)
	for _, want := range []string{"single   5 ms     ≤ 2   NO", "30/70     1…3 !\n", "10/90     0.5\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
}

func TestShowMarkdown(t *testing.T) {
	two := 2.0
	a := figure("RMS", []float64{1, 3}, "points", "lower", &two)
	a.Scenario = "30/70"
	var out strings.Builder
	show(&out, []Figure{a}, true)
	if want := "| scenario | RMS |\n| --- | --- |\n| target | ≤ 2 |\n| 30/70 | 1…3 ! |\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("want\n%s\ngot\n%s", want, out.String())
	}
}

func TestRejectsBadArguments(t *testing.T) {
	for _, args := range [][]string{
		{"-only", "nothing"},
		{"-runs", "0"},
		{"-runs", "101"},
		{"-for", "1s"},
		{"-for", "2h"},
		{"-warm-up", "-1s"},
		{"fairness"},
	} {
		var out, errs strings.Builder
		if code := run(t.Context(), args, &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%v: exit code %d: %s", args, code, errs.String())
		}
	}
}

// TestAttainable checks how busy the GPU can be next to a tenant that waits for its host.
func TestAttainable(t *testing.T) {
	sc := scenario{loads: []load{{share: 30}, {share: 70}}}
	for _, c := range []struct{ first, second, want float64 }{
		{100, 100, 1},
		{80, 100, 1 / (0.3/0.8 + 0.7)}, // the tenant needs 37.5 % of the time for 30 % of what is used
		{50, 50, 0.5},
	} {
		alone := [][]outcome{{{busy: c.first}}, {{busy: c.second - 10}, {busy: c.second + 10}}}
		if got := sc.attainable(alone); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("alone %v and %v: attainable is %v, want %v", c.first, c.second, got, c.want)
		}
	}
}
