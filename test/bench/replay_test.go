package main

import (
	"testing"

	"github.com/gpushare/gpushare/test/enumeration"
)

// TestReplay checks that of random requests at least as many are placed as by first fit and by best fit.
func TestReplay(t *testing.T) {
	seeds := uint64(replaySeeds / enumeration.Stride(5))
	got, err := replays(seeds)
	if err != nil {
		t.Fatal(err)
	}
	for _, load := range mixes {
		n := got[load.name]
		t.Logf(
			"%s: accepted of %d, mean of %d seeds: gpushare %.1f, first fit %.1f, best fit %.1f", load.name, replayRequests, seeds,
			n["gpushare"], n["first fit"], n["best fit"],
		)
		if n["gpushare"] < n["first fit"] || n["gpushare"] < n["best fit"] {
			t.Errorf("%s: gpushare places fewer requests", load.name)
		}
	}
}
