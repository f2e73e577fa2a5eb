package escape

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// record is what the kernel records: in which lease each process was, or the one that started it.
func (w *fakeHost) record() map[string][]int {
	out := map[string][]int{}
	for _, pid := range slices.Sorted(maps.Keys(w.procs)) {
		if id := w.procs[pid].descendsFrom; id != "" {
			out[id] = append(out[id], pid)
		}
	}
	return out
}

// search is one pass over the record.
func (w *fakeHost) search() []escapedProcess {
	var found []escapedProcess
	l := w.snapshot()
	for _, id := range slices.Sorted(maps.Keys(w.record())) {
		found = append(found, outside(id, added(l.inside[id], w.record()[id]), l.stat, l.where)...)
	}
	return found
}

func TestRecordedEscapes(t *testing.T) {
	const why = ": it was inside, or a process started it that was"
	for _, c := range []struct {
		name   string
		happen func(w *fakeHost)
		want   []string
	}{
		{"no process left", func(w *fakeHost) { w.spawn(11, 10); w.exit(10) }, []string{}},
		{"the process that is the lease", func(w *fakeHost) { w.leave(10) }, []string{"a p10" + why}},
		{"its parents have ended, and it is in a session of its own", func(w *fakeHost) {
			w.spawn(11, 10)
			w.setsid(11)
			w.spawn(12, 11)
			w.setsid(12)
			w.exit(11)
			w.exit(10)
			w.leave(12)
		}, []string{"a p12" + why}},
		{"a child of one that left", func(w *fakeHost) { w.leave(10); w.spawn(11, 10); w.exit(10) }, []string{"a p11" + why}},
		{"a process of a lease of its own", func(w *fakeHost) { w.spawn(11, 10); w.run(11, "b") }, []string{}},
		{"one that left a lease of its own", func(w *fakeHost) { w.spawn(11, 10); w.run(11, "b"); w.leave(11) }, []string{"b p11" + why}},
		{"another process with the pid of one that ended", func(w *fakeHost) { w.spawn(11, 10); w.leave(11); w.exit(11); w.spawn(11, 1) }, []string{}},
		{"one about to enter a lease", func(w *fakeHost) { w.leave(10); w.procs[10].managed = true }, []string{}},
		{"a process to be reaped", func(w *fakeHost) { w.leave(10); w.procs[10].State = 'Z' }, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFakeHost()
			w.spawn(10, 1)
			w.run(10, "a")
			c.happen(w)
			if d := cmp.Diff(c.want, inWords(w.search())); d != "" {
				t.Error(d)
			}
		})
	}
}

// Exactly the processes of leases that run outside are found, by one pass after any sequence of events and with no pass before.
func TestRecordedEscapesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, leases := newFakeHost(), 0
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			pid := rapid.SampledFrom(slices.Sorted(maps.Keys(w.procs))).Draw(t, "pid")
			switch rapid.SampledFrom([]string{"fork", "fork", "fork", "exit", "exit", "setsid", "run", "leave"}).Draw(t, "what") {
			case "fork":
				if child := rapid.IntRange(2, 30).Draw(t, "child"); w.free(child) { // A pid is reused soon.
					w.spawn(child, pid)
				}
			case "exit":
				if pid != 1 {
					w.exit(pid)
				}
			case "setsid":
				if w.procs[pid].Session != pid {
					w.setsid(pid)
				}
			case "run":
				if leases++; pid != 1 {
					w.run(pid, fmt.Sprint("l", leases))
				}
			case "leave":
				if w.procs[pid].lease != "" {
					w.leave(pid)
				}
			}
		}
		found := map[int]bool{}
		for _, e := range w.search() {
			found[e.pid] = true
			if b := w.procs[e.pid]; b.Start != e.start || b.descendsFrom != e.lease {
				t.Fatalf("%+v is returned, it is %+v", e, b)
			}
		}
		for pid, b := range w.procs {
			if left := b.descendsFrom != "" && !b.managed; left != found[pid] {
				t.Fatalf("pid %d is found: %v, it is %+v", pid, found[pid], b)
			}
		}
	})
}
