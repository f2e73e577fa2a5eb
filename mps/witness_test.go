package mps

import (
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// What a daemon has written shows whether others were connected since the limits were read.
func TestWitness(t *testing.T) {
	t.Parallel()
	const greetingCost, limits, lists, foreign = 200, 900, 400, 150
	type greeting struct {
		bytes  uint64 // that are written from the greeting before; 0: it cannot be read
		query  queryKind
		text   string // of the query after it; empty: none is sent
		others bool
		again  uint64 // bytes of a second greeting that measures the cost; 0: there is none
	}
	for name, greetings := range map[string][]greeting{
		"no other process": {
			{greetingCost, 0, "", false, 0},
			{greetingCost, limitsQuery, "100.0", false, 0},
			{greetingCost + limits, 0, "", false, 0},
			{greetingCost, 0, "", false, 0},
		},
		"another process": {
			{greetingCost + foreign, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, 0, "", false, 0},
			{greetingCost, 0, "", false, 0},
		},
		"another process after the answer": {
			{greetingCost, limitsQuery, "100.0", false, 0},
			{greetingCost + limits + foreign, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, 0, "", true, 0}, // It differs from the one before, and either may be right.
			{greetingCost, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, 0, "", false, 0},
		},
		"other answers": {
			{greetingCost, limitsQuery, "30.0", false, 0},
			{greetingCost + limits, limitsQuery, "30.0", true, 0},
			{greetingCost + limits, 0, "", false, 0},
		},
		"lists": {
			{greetingCost, listsQuery, "4711", false, 0},
			{greetingCost + lists, limitsQuery, "100.0", true, 0}, // The first of its kind.
			{greetingCost + limits, listsQuery, "4711", false, 0},
			{greetingCost + lists, 0, "", false, 0},
			{greetingCost, listsQuery, "4711", false, 0},
			{greetingCost + lists + foreign, 0, "", true, 0},
		},
		"it was not known": {
			{0, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, 0, "", false, 0},
		},
		"others were connected when it was measured": {
			{greetingCost - 50, limitsQuery, "100.0", true, 0},
			{greetingCost + limits - 50, limitsQuery, "100.0", true, 0},
			{greetingCost + limits - 50, 0, "", false, 0},
			{greetingCost - 50, 0, "", false, 0},
			{greetingCost, 0, "", true, 0},
		},
		"a line came too late, so each greeting seems to be one of others until the cost is measured again": {
			{greetingCost - 60, limitsQuery, "100.0", true, 0},
			{greetingCost + limits + 60, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, 0, "", false, 0},
			{greetingCost, limitsQuery, "100.0", true, 0},
			{greetingCost + limits, 0, "", false, 0},
			{bytes: greetingCost, query: limitsQuery, text: "100.0", others: true, again: greetingCost},
			{greetingCost + limits, 0, "", false, 0},
			{greetingCost, 0, "", false, 0},
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
			measuredAt := time.Now()
			w.measured(written, measuredAt)
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
				if due := w.measureDue(measuredAt.Add(limitsInterval - time.Second)); due {
					t.Errorf("greeting %d: it is to be measured before its time", i)
				}
				if l.again > 0 {
					again := measuredAt.Add(limitsInterval)
					if !w.measureDue(again) {
						t.Errorf("greeting %d: it is not to be measured again", i)
					}
					written += l.again
					w.measured(written, again)
				}
				if l.text != "" {
					w.since[l.query].text = l.text
				}
			}
		})
	}
}

// The lines of a greeting are awaited when they come late, and no longer than for a while when fewer come.
func TestLateLines(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", lineBytes)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo begun; read go; sleep 0.05; echo "+line+" >&2; read end")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }() // It ends with its input.
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	begun := writtenBy(t.Context(), cmd.Process.Pid, 0)
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	want := begun + uint64(len(line)+1)
	if got := writtenBy(t.Context(), cmd.Process.Pid, want); begun == 0 || got != want {
		t.Errorf("after %d bytes: %d, want %d", begun, got, want)
	}
	if got := writtenBy(t.Context(), cmd.Process.Pid, want+2*lineBytes); got != want {
		t.Errorf("fewer than are awaited: %d, want %d", got, want)
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
