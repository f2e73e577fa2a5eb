package escape

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// fakeHost is a host with processes, some of them in leases. It knows of each whether it ever was inside, or was started
// by a process that was.
type fakeHost struct {
	now        uint64
	procs      map[int]*fakeProcess
	startTimes map[string]startTime
}

type fakeProcess struct {
	procfs.Stat
	lease        string // the lease in whose scope it is
	managed      bool
	descendsFrom string // the lease that it was in, or that its parent was in when it started
	seen         string // the lease that it was in at the last pass
}

func newFakeHost() *fakeHost {
	w := &fakeHost{now: 1000, procs: map[int]*fakeProcess{}, startTimes: map[string]startTime{}}
	w.procs[1] = &fakeProcess{Stat: procfs.Stat{PID: 1, Session: 1, State: 'S', Threads: 1, Start: 1, Name: "init"}}
	return w
}

func (w *fakeHost) spawn(pid, parent int) *fakeProcess {
	p := w.procs[parent]
	w.now++
	b := &fakeProcess{
		Stat:  procfs.Stat{PID: pid, PPID: parent, Session: p.Session, State: 'S', Threads: 1, Start: w.now, Name: fmt.Sprint("p", pid)},
		lease: p.lease, managed: p.managed, descendsFrom: p.descendsFrom,
	}
	w.procs[pid] = b
	return b
}

func (w *fakeHost) setsid(pid int) { w.procs[pid].Session = pid }

func (w *fakeHost) exit(pid int) {
	delete(w.procs, pid)
	for _, b := range w.procs {
		if b.PPID == pid {
			b.PPID = 1
		}
	}
	w.now++
}

// run starts a lease with a process.
func (w *fakeHost) run(pid int, lease string) {
	w.now++
	b := w.procs[pid]
	b.lease, b.managed, b.descendsFrom = lease, true, lease
	w.startTimes[lease] = startTime{tick: w.now}
}

// leave moves a process out of its lease.
func (w *fakeHost) leave(pid int) { w.procs[pid].lease, w.procs[pid].managed = "", false }

// free reports whether a new process may get the pid: not while a process or a session has it.
func (w *fakeHost) free(pid int) bool {
	for _, b := range w.procs {
		if b.PID == pid || b.Session == pid {
			return false
		}
	}
	return true
}

func (w *fakeHost) snapshot() snapshot {
	w.now++
	l := snapshot{
		at: w.now, inside: map[string][]int{}, startTimes: w.startTimes, all: slices.Sorted(maps.Keys(w.procs)),
		stat: func(pid int) (procfs.Stat, error) {
			if b, ok := w.procs[pid]; ok {
				return b.Stat, nil
			}
			return procfs.Stat{}, procfs.ErrNoProcess
		},
		where: func(pid int) (location, bool) {
			b, ok := w.procs[pid]
			if !ok {
				return location{}, false
			}
			return location{lease: b.lease, managed: b.managed, path: "/somewhere"}, true
		},
	}
	for lease := range w.startTimes {
		for _, pid := range l.all {
			if w.procs[pid].lease == lease {
				l.inside[lease] = append(l.inside[lease], pid)
			}
		}
	}
	w.now++
	return l
}

func inWords(found []escapedProcess) []string {
	out := []string{}
	for _, escaped := range found {
		out = append(out, fmt.Sprintf("%s %s: %s", escaped.lease, escaped.name, escaped.why))
	}
	return out
}

func TestTracker(t *testing.T) {
	tests := []struct {
		name   string
		before func(w *fakeHost) // up to the first pass
		after  func(w *fakeHost) // up to the second
		want   []string
	}{
		{
			name: "no process left", before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a"); w.spawn(11, 10) },
			after: func(w *fakeHost) { w.spawn(12, 11); w.exit(11) },
		},
		{
			name: "the process that is the lease", before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a") },
			after: func(w *fakeHost) { w.leave(10) }, want: []string{"a p10: it was inside"},
		},
		{
			name: "a child that was observed inside", before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a"); w.spawn(11, 10) },
			after: func(w *fakeHost) { w.setsid(11); w.exit(10); w.leave(11) }, want: []string{"a p11: it was inside"},
		},
		{
			name: "a child that was never observed inside", before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a") },
			after: func(w *fakeHost) { w.spawn(11, 10); w.leave(11) }, want: []string{"a p11: its parent belongs to the lease"},
		},
		{
			name: "children of one that left", before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a") },
			after: func(w *fakeHost) { w.leave(10); w.spawn(9, 10); w.spawn(8, 9) },
			want:  []string{"a p8: its parent belongs to the lease", "a p9: its parent belongs to the lease", "a p10: it was inside"},
		},
		{
			name:   "an orphan of a session that started inside",
			before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a"); w.spawn(11, 10); w.setsid(11) },
			after:  func(w *fakeHost) { w.spawn(12, 11); w.spawn(13, 12); w.leave(13); w.exit(12) },
			want:   []string{"a p13: its session started inside"},
		},
		{
			name:   "the same, and its leader has exited",
			before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a"); w.spawn(11, 10); w.setsid(11); w.spawn(12, 11) },
			after:  func(w *fakeHost) { w.spawn(13, 12); w.leave(13); w.exit(12); w.exit(11); w.exit(10) },
			want:   []string{"a p13: its session started inside"},
		},
		{
			name:   "a shell that becomes a lease has older children",
			before: func(w *fakeHost) { w.spawn(10, 1); w.setsid(10); w.spawn(11, 10); w.run(10, "a") },
			after:  func(w *fakeHost) { w.spawn(12, 11); w.spawn(13, 1) },
		},
		{
			name: "its pid was reused", before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a"); w.spawn(11, 10) },
			after: func(w *fakeHost) { w.exit(11); w.spawn(11, 1) },
		},
		{
			name: "a process requests a lease of its own", before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a"); w.spawn(11, 10) },
			after: func(w *fakeHost) { w.run(11, "b") },
		},
		{
			name: "a process is about to enter a lease", before: func(w *fakeHost) { w.spawn(10, 1); w.run(10, "a"); w.spawn(11, 10) },
			after: func(w *fakeHost) { w.leave(11); w.procs[11].managed = true },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, r := newFakeHost(), tracker{}
			tt.before(w)
			if found := r.observe(w.snapshot()); len(found) > 0 {
				t.Fatalf("before a process left: %v", inWords(found))
			}
			tt.after(w)
			want := tt.want
			if want == nil {
				want = []string{}
			}
			if d := cmp.Diff(want, inWords(r.observe(w.snapshot()))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			// A process that was not killed is returned again.
			if d := cmp.Diff(len(want), len(r.observe(w.snapshot()))); d != "" {
				t.Errorf("at the next pass (-want +got):\n%s", d)
			}
		})
	}
}

func TestTrackerAfterARestart(t *testing.T) {
	w, r := newFakeHost(), tracker{}
	w.spawn(10, 1)
	w.run(10, "a")
	start := w.procs[10].Start
	w.leave(10)
	w.spawn(11, 10)
	r.add("a", 10, start, 0) // As it is in the record of the lease.
	want := []string{"a p10: it was inside", "a p11: its parent belongs to the lease"}
	if d := cmp.Diff(want, inWords(r.observe(w.snapshot()))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestGrandchildOnAGPU(t *testing.T) {
	w, r := newFakeHost(), tracker{}
	w.spawn(10, 1)
	w.spawn(20, 1)
	w.run(10, "a")
	// Two generations between two passes.
	r.observe(w.snapshot())
	w.spawn(11, 10)
	w.spawn(12, 11)
	w.leave(11)
	w.leave(12)
	l := w.snapshot()
	if escaped, ok := r.descendantByParents(12, l); !ok || escaped.lease != "a" || escaped.pid != 12 {
		t.Errorf("a grandchild: %+v, %v", escaped, ok)
	}
	if escaped, ok := r.descendantByParents(20, l); ok {
		t.Errorf("an unrelated process: %+v", escaped)
	}
	if escaped, ok := r.descendantByParents(99, l); ok {
		t.Errorf("no process: %+v", escaped)
	}
}

func TestStartTimePrecedes(t *testing.T) {
	b := startTime{tick: 500, pid: 32000}
	tests := []struct {
		name  string
		at    startTime
		start uint64
		pid   int
		want  bool
	}{
		{"earlier", b, 499, 32001, false},
		{"later", b, 501, 31999, true},
		{"in the same tick, a smaller pid", b, 500, 31999, false},
		{"in the same tick, the last pid", b, 500, 32000, false},
		{"in the same tick, a larger pid", b, 500, 32001, true},
		{"in the same tick, the pids wrapped around", b, 500, 310, true},
		{"in the same tick, the pids had wrapped around just before", startTime{500, 310}, 500, 32001, false},
		{"in the same tick, unknown", startTime{tick: 500}, 500, 32001, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.at.precedes(procfs.Stat{PID: tt.pid, Start: tt.start}); got != tt.want {
				t.Errorf("started after: %v", got)
			}
		})
	}
}

// TestTrackerModel applies random operations to a host, with passes in between. A process that has nothing to do with a
// lease is never returned; a process that was observed inside and runs outside always is.
func TestTrackerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, r := newFakeHost(), tracker{}
		leases := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			pids := slices.Sorted(maps.Keys(w.procs))
			pid := rapid.SampledFrom(pids).Draw(t, "pid")
			switch rapid.SampledFrom(
				[]string{"fork", "fork", "fork", "exit", "setsid", "run", "leave", "leave", "observe", "observe"},
			).Draw(t, "what") {
			case "fork":
				if child := rapid.IntRange(2, 30).Draw(t, "child"); w.free(child) {
					w.spawn(child, pid)
				}
			case "exit":
				if pid != 1 {
					w.exit(pid)
				}
			case "setsid":
				if w.procs[pid].Session != pid && pid != 1 {
					w.setsid(pid)
				}
			case "run":
				if leases++; pid != 1 {
					w.run(pid, fmt.Sprint("l", leases))
					r.add(fmt.Sprint("l", leases), pid, w.procs[pid].Start, 0)
				}
			case "leave":
				if w.procs[pid].lease != "" {
					w.leave(pid)
				}
			case "observe":
				found := r.observe(w.snapshot())
				reported := map[int]bool{}
				for _, escaped := range found {
					b := w.procs[escaped.pid]
					if b == nil || b.descendsFrom == "" || b.managed || b.Start != escaped.start {
						t.Fatalf("an unrelated process is returned: %+v, it is %+v", escaped, b)
					}
					reported[escaped.pid] = true
				}
				for pid, b := range w.procs {
					if b.seen != "" && !b.managed && !reported[pid] {
						t.Fatalf("pid %d was observed inside %s and runs outside, and is not returned", pid, b.seen)
					}
					if b.lease != "" {
						b.seen = b.lease
					}
				}
			}
		}
	})
}
