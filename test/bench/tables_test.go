package main

import (
	"testing"

	"github.com/gpushare/gpushare/test/fairness"
)

// TestExtentShowsAMiss checks that a cell of a table shows it if one of its runs misses the target.
func TestExtentShowsAMiss(t *testing.T) {
	runs := []fairness.Figures{{RMS10: 0.5, Busy: 99}, {RMS10: 2.25, Busy: 96.5}}
	for _, c := range []struct {
		value  func(fairness.Figures) float64
		target float64
		want   string
	}{
		{rms10, 2, "0.5…2.25 !"},
		{rms10, 2.25, "0.5…2.25"},
		{rms10, 0, "0.5…2.25"},
		{busy, -97, "96.5…99 !"},
		{busy, -96, "96.5…99"},
	} {
		if got := extent(runs, c.value, c.target); got != c.want {
			t.Errorf("with the target %v: %q, want %q", c.target, got, c.want)
		}
	}
	if got := extent(nil, rms10, 2); got != "-" {
		t.Errorf("without runs: %q", got)
	}
}
