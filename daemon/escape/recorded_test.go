package escape

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// record is what the kernel records: in which lease each process was, or the one that started it.
func (w *fakeHost) record() map[string]map[int]uint64 {
	out := map[string]map[int]uint64{}
	for pid, b := range w.procs {
		if out[b.descendsFrom] == nil {
			out[b.descendsFrom] = map[int]uint64{}
		}
		out[b.descendsFrom][pid] = b.Start
	}
	delete(out, "")
	return out
}

// search is one pass over the record.
func (w *fakeHost) search() []escapedProcess {
	var found []escapedProcess
	l := w.snapshot()
	for _, id := range slices.Sorted(maps.Keys(w.record())) {
		found = append(found, outside(id, w.record()[id], l.inside[id], l.stat, l.where)...)
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

// fakeRecord is a record of one lease, to which others add processes between two reads.
type fakeRecord struct {
	descentRecord
	pids  []int
	fails map[int]error // of Add
	lost  uint64
	users map[int]uint64 // what is lost of users
	tried int            // how often Add was called
}

func (r *fakeRecord) Members() (map[string]map[int]uint64, error) {
	return map[string]map[int]uint64{"a": startTimesOf(r.pids)}, nil
}

func (r *fakeRecord) Lost() (uint64, map[int]uint64, error) { return r.lost, r.users, nil }

// startTimesOf are processes of which only the pids matter.
func startTimesOf(pids []int) map[int]uint64 {
	out := map[int]uint64{}
	for _, pid := range pids {
		out[pid] = 1
	}
	return out
}

func (r *fakeRecord) Add(_ string, pid int) (func() error, error) {
	r.tried++
	if err := r.fails[pid]; err != nil {
		return nil, err
	}
	r.pids = append(r.pids, pid)
	return nil, nil
}

// fakeScopes knows in which lease each process is.
type fakeScopes struct {
	cgroup.Port
	of map[int]string
}

func (p fakeScopes) ScopeOf(pid int) (string, bool) { id, ok := p.of[pid]; return id, ok }

func TestRecordMissing(t *testing.T) {
	errFull := errors.New("no space")
	for _, c := range []struct {
		name             string
		recorded, inside []int
		now              []int // recorded when it is read again
		of               map[int]string
		fails            map[int]error
		want             []int // recorded by it
		err              error
	}{
		{name: "all are recorded", recorded: []int{10, 11}, inside: []int{10}},
		{name: "two are not", recorded: []int{10}, inside: []int{9, 10, 11}, now: []int{10}, of: map[int]string{9: "a", 11: "a"}, want: []int{9, 11}},
		{name: "one forked meanwhile, and is recorded by the kernel", recorded: []int{10}, inside: []int{10, 11, 12}, now: []int{10, 11}, of: map[int]string{11: "a", 12: "a"}, want: []int{12}},
		{name: "one has exited, one is in another lease", inside: []int{10, 11, 12}, of: map[int]string{11: "b", 12: "a"}, want: []int{12}},
		{name: "one exits while it is recorded", inside: []int{10, 11}, of: map[int]string{10: "a", 11: "a"}, fails: map[int]error{10: fmt.Errorf("it ended: %w", procfs.ErrNoProcess)}, want: []int{11}},
		{name: "one cannot be recorded", inside: []int{10}, of: map[int]string{10: "a"}, fails: map[int]error{10: errFull}, err: errFull},
	} {
		r := &fakeRecord{pids: slices.Clone(c.now), fails: c.fails}
		e := &Escapes{Descent: r, Port: fakeScopes{of: c.of}}
		if err := e.recordMissing("a", c.inside, startTimesOf(c.recorded)); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		if got := r.pids[len(c.now):]; !slices.Equal(got, c.want) {
			t.Errorf("%s: it recorded %v, want %v", c.name, got, c.want)
		}
	}
}

// A pass tries to record only some of the processes of a user who has too many. The others would take it minutes.
func TestRecordMissingOfAUserWhoHasTooMany(t *testing.T) {
	inside, of := []int(nil), map[int]string{}
	for pid := range 10_000 {
		inside, of[pid+10] = append(inside, pid+10), "a"
	}
	for why, want := range map[string]int{"": len(inside), startedFirst: len(inside), tooMany: mostTried, tooManyOfUser: mostTried} {
		r := &fakeRecord{}
		e := &Escapes{Descent: r, Port: fakeScopes{of: of}}
		e.Escaped.partial = map[string]string{"a": why}
		if err := e.recordMissing("a", inside, nil); err != nil || r.tried != want {
			t.Errorf("%q: it tries to record %d of %d, want %d: %v", why, r.tried, len(inside), want, err)
		}
	}
}

// abilities is a port with a hierarchy.
type abilities struct{ cgroup.Port }

func (abilities) Abilities() cgroup.Abilities {
	return cgroup.Abilities{Hierarchy: &cgroup.Hierarchy{Mount: "/"}}
}

func (abilities) ScopeOf(int) (string, bool) { return "", false }

// noGPUs is a driver without GPUs.
type noGPUs struct{ gpu.Driver }

func (noGPUs) Node(context.Context) (gpu.NodeInfo, error) { return gpu.NodeInfo{}, nil }

// escapesOnNothing are Escapes of a host without GPUs and leases, on which a spec is enforced.
func escapesOnNothing(t *testing.T) (*Escapes, *report.Reporter) {
	rep := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	st := state.NewState(nil, false)
	st.SetDesired(&state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}}})
	observer := &observe.Observer{Driver: noGPUs{}, Slices: cgroup.NewProcesses("a test"), HostRoot: t.TempDir(), Now: time.Now}
	observer.Observe(t.Context())
	return &Escapes{
		Reporter: rep, State: st, Port: abilities{}, Attribution: &attribution.Attribution{Port: abilities{}},
		Table: leasetest.TableWith(t, "red", "part", 1001), Observer: observer, Samples: &observe.Samples{},
	}, rep
}

// countedRecord counts how often the record is read.
type countedRecord struct {
	descentRecord
	of    map[string]map[int]uint64
	reads int
}

func (r *countedRecord) Members() (map[string]map[int]uint64, error) {
	r.reads++
	return r.of, nil
}

func (r *countedRecord) Lost() (uint64, map[int]uint64, error) { return 0, nil, nil }

// Without leases the record of descent is read now and then, and in each pass when it has a process or a lease has started.
func TestTheRecordRestsWithoutLeases(t *testing.T) {
	e, _ := escapesOnNothing(t)
	r := &countedRecord{}
	e.Descent = r
	pass := func(n int) {
		t.Helper()
		for range n {
			if err := e.endEscaped(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	pass(restPasses)
	if r.reads != 1 {
		t.Errorf("without leases it was read %d times in %d passes", r.reads, restPasses)
	}
	r.of = map[string]map[int]uint64{"red-1": {1: 1}}
	pass(1) // Its turn.
	if r.reads != 2 {
		t.Errorf("it was read %d times after %d passes", r.reads, restPasses+1)
	}
	pass(5)
	if r.reads != 7 {
		t.Errorf("with a process in it, it was read %d times in 5 passes", r.reads-2)
	}
	r.of = nil
	pass(1)
	pass(1)
	started := &lease.Lease{ID: "red-2", Process: lease.Process{PID: 1, Start: 1}}
	started.Isolation.Cgroup = "/x"
	e.Escaped.Note(started)
	before := r.reads
	pass(1)
	if r.reads != before+1 {
		t.Error("it was not read when a lease had started")
	}
}

// A process that the last pass found in a lease is not looked up again, as long as that pass was lately.
func TestProcessesInsideAreNotReadAgain(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	p := &countedScopes{}
	e := &Escapes{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), func() time.Time { return now }),
		Attribution: &attribution.Attribution{
			Port: p, Follow: cgroup.NewProcesses("a test"), Attachments: cgroup.NewAttachments(cgroup.AttachmentsOptions{}),
		},
	}
	e.Escaped.note(map[string][]int{"red-1": {7, 8}}, now)
	for _, c := range []struct {
		name  string
		pid   int
		after time.Duration
		reads int
	}{
		{"inside", 7, time.Second, 0},
		{"another one inside", 8, time.Second, 0},
		{"outside", 9, 0, 1},
		{"the pass was long ago", 7, insideFor, 1},
	} {
		p.reads, now = 0, time.Unix(1_000_000, 0).Add(c.after)
		if _, ok := e.unattributed(c.pid); ok || p.reads != c.reads {
			t.Errorf("%s: unattributed %v, read %d times, want %d", c.name, ok, p.reads, c.reads)
		}
	}
}

// countedScopes counts how often the lease of a process is read.
type countedScopes struct {
	cgroup.Port
	reads int
}

func (p *countedScopes) ScopeOf(int) (string, bool) {
	p.reads++
	return "red-1", true
}

// Without the record a condition says what may not be found, while a spec is enforced.
func TestConditionWithoutARecord(t *testing.T) {
	e, rep := escapesOnNothing(t)
	e.NoDescent = errors.New("the kernel has none")
	for _, c := range []struct {
		enforce          api.OnOff
		missing, notKept error
		want, hint       string
	}{
		{"on", e.NoDescent, nil, "those that started it have ended: the kernel has none", "logins: closed"},
		{"observe", e.NoDescent, nil, "", ""},
		{"on", e.NoDescent, nil, "the kernel has none", "logins: closed"},
		{"on", nil, nil, "", ""},
		{"on", nil, errors.New("nothing is mounted"), "while gpushared does not run may not be found, if those that started it have ended: nothing is mounted", "mount -t bpf bpf /sys/fs/bpf"},
		{"observe", nil, errors.New("nothing is mounted"), "", ""},
	} {
		e.State.SetDesired(&state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: c.enforce}}})
		e.NoDescent, e.NotKept = c.missing, c.notKept
		if err := e.endEscaped(t.Context()); err != nil {
			t.Fatal(err)
		}
		found := rep.Conditions.List()
		if (len(found) != 0) != (c.want != "") ||
			len(found) > 0 &&
				(found[0].Kind != "escape" || !strings.Contains(found[0].Message, c.want) || !strings.Contains(found[0].Hint, c.hint)) {
			t.Errorf("enforce %s, missing: %v: the conditions are %+v", c.enforce, c.missing, found)
		}
	}
}

// Processes that the kernel did not record, and leases from before the record, are a condition until their leases have ended. So long
// escaped processes are found by looking, too.
func TestConditionOfAPartialRecord(t *testing.T) {
	for _, c := range []struct {
		name          string
		happen        func(e *Escapes, r *fakeRecord)
		message, hint string
	}{
		{"nothing happened", func(*Escapes, *fakeRecord) {}, "", ""},
		{"processes are lost", func(_ *Escapes, r *fakeRecord) { r.lost = 3 }, "their processes are more than are recorded at a time: a", "(tasks)"},
		{"a user has too many", func(_ *Escapes, r *fakeRecord) { r.users = map[int]uint64{1000: 3} }, "their users have more processes than are recorded of one user at a time: a", "(tasks)"},
		{"another user has too many", func(_ *Escapes, r *fakeRecord) { r.users = map[int]uint64{1001: 3} }, "", ""},
		{"the record begins", func(e *Escapes, _ *fakeRecord) { e.RecordBegins = true }, "they started before the record: a", "gpushare lease list"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, rep := escapesOnNothing(t)
			const ended = 1 << 30 // no process has this pid
			r := &fakeRecord{pids: []int{ended}}
			e.Descent, e.Escaped.Since = r, time.Now()
			before := e.Escaped.Since.Add(-time.Hour)
			e.Note(&lease.Lease{
				ID:        "a",
				UID:       1000,
				Started:   &before,
				Process:   lease.Process{PID: ended, Start: 1},
				Isolation: api.IsolationStatus{Cgroup: "/gpushare/a"},
			})
			pass := func(want string) {
				t.Helper()
				if err := e.endEscaped(t.Context()); err != nil {
					t.Fatal(err)
				}
				found := rep.Conditions.List()
				if (len(found) != 0) != (want != "") ||
					len(found) > 0 &&
						(found[0].Kind != "escape" || !strings.Contains(found[0].Message, want) || !strings.Contains(found[0].Hint, c.hint)) {
					t.Errorf("the conditions are %+v", found)
				}
			}
			pass("")
			c.happen(e, r)
			if e.RecordBegins { // It is known when the lease is noted.
				e.Escaped.leases = nil
				e.Note(&lease.Lease{
					ID:        "a",
					UID:       1000,
					Started:   &before,
					Process:   lease.Process{PID: ended, Start: 1},
					Isolation: api.IsolationStatus{Cgroup: "/gpushare/a"},
				})
			}
			for range 2 {
				pass(c.message)
			}
			if searches := !e.Escaped.tracker.empty() || e.Escaped.tracker.pass > 0; searches != (c.message != "") {
				t.Errorf("escaped processes are found by looking: %t", searches)
			}
			r.pids = nil // The lease has ended, and so have its processes.
			for range 2 {
				pass("")
			}
			if !e.Escaped.tracker.empty() || e.Escaped.tracker.pass > 0 || len(e.Escaped.leases) > 0 {
				t.Errorf("it is still looked for: %+v", e.Escaped.leases)
			}
		})
	}
}

// Hierarchies of an earlier version are a condition until they are unmounted, with the command, whether a spec is enforced or not.
func TestConditionOfFormerMounts(t *testing.T) {
	e, rep := escapesOnNothing(t)
	e.State.SetDesired(&state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: "observe"}}})
	mounts := []string{"/run/gpushare/descent", "/run/gpushare/moves"}
	e.FormerMounts = func() ([]string, error) { return mounts, nil }
	for _, want := range []int{1, 1, 0, 0} {
		if want == 0 {
			mounts = nil
		}
		if err := e.endEscaped(t.Context()); err != nil {
			t.Fatal(err)
		}
		found := rep.Conditions.List()
		if len(found) != want ||
			want > 0 && (found[0].Kind != "hierarchy" || found[0].Hint != "'umount /run/gpushare/descent /run/gpushare/moves'") {
			t.Errorf("the conditions are %+v", found)
		}
	}
}
