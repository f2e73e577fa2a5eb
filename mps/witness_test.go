package mps

import (
	"testing"
	"time"
)

// What a daemon has written shows whether others were connected since the limits were read.
func TestWitness(t *testing.T) {
	t.Parallel()
	const greetingCost, limits, lists, foreign = 200, 900, 400, 150
	type greeting struct {
		bytes  uint64 // that are written from the greeting before
		query  queryKind
		text   string // of the query after it; empty: none is sent
		others bool
	}
	for name, greetings := range map[string][]greeting{
		"no other process": {
			{greetingCost, 0, "", false},
			{greetingCost, limitsQuery, "100.0", false},
			{greetingCost + limits, 0, "", false},
			{greetingCost, 0, "", false},
		},
		"another process": {
			{greetingCost + foreign, limitsQuery, "100.0", true},
			{greetingCost + limits, 0, "", false},
			{greetingCost, 0, "", false},
		},
		"another process after the answer": {
			{greetingCost, limitsQuery, "100.0", false},
			{greetingCost + limits + foreign, limitsQuery, "100.0", true},
			{greetingCost + limits, 0, "", true}, // It differs from the one before, and either may be right.
			{greetingCost, limitsQuery, "100.0", true},
			{greetingCost + limits, 0, "", false},
		},
		"other answers": {
			{greetingCost, limitsQuery, "30.0", false},
			{greetingCost + limits, limitsQuery, "30.0", true},
			{greetingCost + limits, 0, "", false},
		},
		"lists": {
			{greetingCost, listsQuery, "4711", false},
			{greetingCost + lists, limitsQuery, "100.0", true}, // The first of its kind.
			{greetingCost + limits, listsQuery, "4711", false},
			{greetingCost + lists, 0, "", false},
			{greetingCost, listsQuery, "4711", false},
			{greetingCost + lists + foreign, 0, "", true},
		},
		"it was not known": {
			{0, limitsQuery, "100.0", true},
			{greetingCost + limits, limitsQuery, "100.0", true},
			{greetingCost + limits, limitsQuery, "100.0", true},
			{greetingCost + limits, 0, "", false},
		},
		"others were connected when it was measured": {
			{greetingCost - 50, limitsQuery, "100.0", true},
			{greetingCost + limits - 50, limitsQuery, "100.0", true},
			{greetingCost + limits - 50, 0, "", false},
			{greetingCost - 50, 0, "", false},
			{greetingCost, 0, "", true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			written := uint64(1000)
			w := witness{follows: true}
			w.greeted(written)
			if !w.others {
				t.Error("at first it is known")
			}
			written += greetingCost
			w.measured(written)
			for range 2 { // The limits are read with the same answers twice.
				w.since[limitsQuery].text = "100.0"
				written += greetingCost + limits
				w.greeted(written)
			}
			if w.others {
				t.Fatal("at the beginning it is not known")
			}
			for i, l := range greetings {
				now := uint64(0)
				if written += l.bytes; l.bytes > 0 {
					now = written
				}
				w.greeted(now)
				if w.others != l.others {
					t.Errorf("greeting %d: others are %v", i, w.others)
				}
				if l.text != "" {
					w.since[l.query].text = l.text
				}
			}
		})
	}
}

// A connection of another process makes the next observation read the limits, and only that one, on a version where tenants may change
// them.
func TestOnlyAConnectionMakesItRead(t *testing.T) {
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			r := newFixtureOf(t, driver)
			r.start(t, Settings{GPU: gpuA, Threads: 30})
			r.burn(t, r.environment(t, Limits{}), "--hold")
			reads := func(n int) (count int) {
				for range n {
					before := r.gpuState(deviceA).reading.limits
					r.clock.pass(time.Second)
					if st := r.Observe(t.Context(), deviceA); !st.Healthy() {
						t.Fatalf("observed %+v", st)
					}
					if !r.gpuState(deviceA).reading.limits.Equal(before) {
						count++
					}
				}
				return count
			}
			if reads(5) == 0 && driver < "580" {
				t.Error("a client that has joined is not noticed")
			}
			most := 0
			if driver < "580" {
				most = 1
			}
			if n := reads(20); n > 0 {
				t.Errorf("%d of 20 observations read the limits although no process was connected", n)
			}
			if _, err := r.tenantsControl().query(t.Context(), "get_server_list"); err != nil {
				t.Fatal(err)
			}
			if n := reads(1); n != most {
				t.Errorf("after a connection %d observations read the limits, want %d", n, most)
			}
		})
	}
}
