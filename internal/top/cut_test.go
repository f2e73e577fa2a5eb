package top

import (
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		text   string
		most   int
		middle bool
		want   string
	}{
		{"train", 5, false, "train"},
		{"train", 4, false, "tra…"},
		{"train", 1, false, "…"},
		{"train", 0, false, ""},
		{"", 0, false, ""},
		{"vision-train-x7k2", 9, true, "visi…x7k2"},
		{"vision-train-x7k2", 10, true, "visio…x7k2"},
		{"vision-train-x7k2", 4, true, "vis…"},
		{"逆問題を解く", 12, false, "逆問題を解く"},
		{"逆問題を解く", 6, false, "逆問…"},
		{"逆問題を解く", 7, true, "逆問…く"},
		{"e\u0301e\u0301e\u0301", 3, false, "e\u0301e\u0301e\u0301"},
		{"e\u0301e\u0301e\u0301", 2, false, "e\u0301…"},
		{"a\x1b\x1b\x1bb", 5, false, "a\x1b\x1b\x1bb"},
		{"a\x1b\x1b\x1bb", 3, false, "a\x1b…"},
		{"a\xff\xff\xffb", 3, false, "a\xff…"},
		{"ab\x1b\x1b\x1bc", 5, true, "ab…\x1bc"},
	} {
		got := cut(c.text, c.most, c.middle)
		if got != c.want {
			t.Errorf("%q in %d cells: %q, want %q", c.text, c.most, got, c.want)
		}
		if wide(got) > c.most {
			t.Errorf("%q has %d cells of %d", got, wide(got), c.most)
		}
	}
}

// What is cut costs the same for a long text as for a short one: users write commands as long as they like.
func TestCutOfALongCommand(t *testing.T) {
	cost := func(text string, middle bool) float64 {
		return testing.AllocsPerRun(5, func() { cut(text, 20, middle) })
	}
	for _, middle := range []bool{false, true} {
		short, long := cost(strings.Repeat("x", 40), middle), cost(strings.Repeat("x", 4000), middle)
		if long > short {
			t.Errorf("in the middle %v: %v allocations for 40 characters, %v for 4000", middle, short, long)
		}
	}
}
