package control

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

const greetingCost, limits = 200, 900

// newWitness returns a witness that knows its costs, and what the daemon has written. It was measured at its start.
func newWitness(t *testing.T) (w witness, written uint64) {
	t.Helper()
	written = 1000
	w = witness{follows: true}
	w.greeted(written)
	if !w.others {
		t.Error("at first it is known")
	}
	written += greetingCost
	w.measured(written, witnessStart)
	for range 2 { // The limits are read with the same answers twice.
		w.since[limitsQuery].text = "100.0"
		written += greetingCost + limits
		w.greeted(written)
	}
	if w.others {
		t.Fatal("at the beginning it is not known")
	}
	return w, written
}

var witnessStart = time.Unix(1000, 0)

// What a daemon has written shows whether others were connected since the limits were read.
func TestWitness(t *testing.T) {
	t.Parallel()
	const lists, foreign = 400, 150
	type greeting struct {
		bytes  uint64 // that are written from the greeting before; 0: it cannot be read
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
			w, written := newWitness(t)
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

// After a line that came too late each greeting seems to be one of others, until the cost is measured again.
func TestALateLineIsMeasuredAgain(t *testing.T) {
	t.Parallel()
	w, written := newWitness(t)
	greet := func(bytes uint64, others bool) {
		t.Helper()
		written += bytes
		if w.greeted(written); w.others != others {
			t.Errorf("after %d bytes others are %t", bytes, w.others)
		}
	}
	readLimits := func() { w.since[limitsQuery].text = "100.0" }
	greet(greetingCost-60, true)
	readLimits()
	for _, late := range []uint64{60, 0} { // Each differs from the one before it.
		greet(greetingCost+limits+late, true)
		readLimits()
	}
	greet(greetingCost+limits, false)
	greet(greetingCost, true)
	if w.measureDue(witnessStart.Add(limitsInterval - time.Second)) {
		t.Error("it is to be measured before its time")
	}
	again := witnessStart.Add(limitsInterval)
	if !w.measureDue(again) {
		t.Error("it is not to be measured again")
	}
	written += greetingCost
	w.measured(written, again)
	readLimits()
	greet(greetingCost+limits, false)
	greet(greetingCost, false)
}

// The lines of a greeting are awaited when they come late, and no longer than for a while when fewer come.
func TestLateLines(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", lineBytes)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read go; sleep 0.05; echo "+line+" >&2; read end")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }() // It ends with its input.
	begun, err := procfs.Written(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	want := begun + uint64(len(line)+1)
	if got := writtenBy(t.Context(), cmd.Process.Pid, want); got != want {
		t.Errorf("after %d bytes: %d, want %d", begun, got, want)
	}
	if got := writtenBy(t.Context(), cmd.Process.Pid, want+2*lineBytes); got != want {
		t.Errorf("fewer than are awaited: %d, want %d", got, want)
	}
}

// A connection of another process makes the next observation read the limits, and only that one, on a version where tenants may change
// them.
func TestOnlyAConnectionMakesItRead(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			r := newFixtureOf(t, driver)
			r.start(t, mps.Settings{GPU: gpuA, Threads: 30})
			r.burn(t, r.environment(t, mps.Limits{}), "--hold")
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
