package main

import (
	"testing"

	"github.com/gpushare/gpushare/test/enumeration"
)

// TestReplay: of requests that come and go at random no fewer find a place than by first fit and by best fit.
func TestReplay(t *testing.T) {
	seeds := uint64(replaySeeds / enumeration.Stride(5))
	got, err := replays(seeds)
	if err != nil {
		t.Fatal(err)
	}
	for _, load := range mixes {
		n := got[load.name]
		t.Logf("%s: accepted of %d, mean of %d seeds: ours %.1f, first fit %.1f, best fit %.1f", load.name, replayRequests, seeds, n["ours"], n["first fit"], n["best fit"])
		if n["ours"] < n["first fit"] || n["ours"] < n["best fit"] {
			t.Errorf("%s: ours is below", load.name)
		}
	}
}
