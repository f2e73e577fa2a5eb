package main

import "testing"

// TestReplay: of requests that come and go at random no fewer find a place than by first fit and by best fit.
func TestReplay(t *testing.T) {
	got, err := replays()
	if err != nil {
		t.Fatal(err)
	}
	for _, load := range mixes {
		n := got[load.name]
		t.Logf("%s: accepted of %d, mean of %d seeds: ours %.1f, first fit %.1f, best fit %.1f", load.name, replayRequests, replaySeeds, n["ours"], n["first fit"], n["best fit"])
		if n["ours"] < n["first fit"] || n["ours"] < n["best fit"] {
			t.Errorf("%s: ours is below", load.name)
		}
	}
}
