package escape

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// tracker knows the processes that were observed inside leases. The cgroup of a lease is not enough: a tenant who runs a
// systemd user manager can move a process out of it (AttachProcessesToUnit), frozen or not, and from the cgroups alone it
// looks as if the lease had ended. So the tracker keeps the processes; one that runs outside has left.
//
// It reads nothing itself: each pass gets a snapshot.
type tracker struct {
	members  map[int]*member
	exited   map[int]exitedMember // members that exited, by pid: the session that one led may still exist
	previous []int                // every process of the host at the last pass, ascending
	pass     uint64               // counts the passes
}

// exitedMember is a member that has exited.
type exitedMember struct {
	lease string
	at    uint64
}

// recentlyExited is how long, in clock ticks, an exited member still identifies the lease of its session. The kernel does
// not reuse a pid while a session has its number; after that it may soon.
const recentlyExited = 60 * procfs.Ticks

// member is one process that was observed inside a lease.
type member struct {
	lease      string
	start      uint64
	lastInside uint64 // when it was last observed inside, in clock ticks since boot
	pass       uint64 // the last pass that found it inside
}

// same reports whether the process that has the member's pid now is this member. A process that started before the member
// was last observed inside is the same one, whatever start time was read before.
func (s *member) same(st procfs.Stat) bool { return st.Start == s.start || st.Start < s.lastInside }

// location is where a process runs now.
type location struct {
	lease   string // the lease in whose scope it is; empty: none
	managed bool   // it is below the cgroups of gpushare: in a lease, or about to enter one
	path    string // of its cgroup
}

// startTime is a moment that separates the processes that started before it from those that started after it.
type startTime struct {
	tick uint64 // clock ticks since boot
	pid  int    // the last pid that was assigned by then; 0 when it was not read
}

// precedes reports whether a process started after the moment. The kernel reports start times in hundredths of a second, in
// which many processes start, but it assigns pids in order. In doubt the process did not start after.
func (b startTime) precedes(st procfs.Stat) bool {
	if st.Start != b.tick || b.pid == 0 {
		return st.Start > b.tick
	}
	// Pids wrap around. No host assigns half of the smallest pid range (32768) in one tick.
	const half = 1 << 14
	return st.PID > b.pid && st.PID-b.pid < half || b.pid-st.PID > half
}

// snapshot is the input of one pass. at was read first, then inside, then all.
type snapshot struct {
	at         uint64               // clock ticks since boot
	inside     map[string][]int     // the processes of each lease
	startTimes map[string]startTime // of each lease, also of ended ones: a process that started earlier does not belong to it
	all        []int                // every process of the host, ascending
	stat       func(pid int) (procfs.Stat, error)
	where      func(pid int) (location, bool) // false: it has exited
}

// escapedProcess is a process that belongs to a lease and runs outside of it.
type escapedProcess struct {
	lease      string
	pid        int
	start      uint64
	name, path string
	why        string // why it is known to belong to the lease
}

// Why a process belongs to a lease.
const (
	wasInside    = "it was inside"
	hasItsParent = "its parent belongs to the lease"
	hasItsLeader = "its session started inside"
)

// add records a process that is inside, or that was inside when its lease was recorded.
func (r *tracker) add(lease string, pid int, start, at uint64) {
	if r.members == nil {
		r.members, r.exited = map[int]*member{}, map[int]exitedMember{}
	}
	r.members[pid] = &member{lease: lease, start: start, lastInside: at}
}

// remove removes a member that has exited.
func (r *tracker) remove(pid int, l snapshot) {
	s := r.members[pid]
	if l.startTimes[s.lease].precedes(procfs.Stat{PID: pid, Start: s.start}) { // Else its session may be older than the lease.
		r.exited[pid] = exitedMember{s.lease, l.at}
	}
	delete(r.members, pid)
}

// observe makes one pass and returns the processes that run outside. They stay members until they exit.
func (r *tracker) observe(l snapshot) []escapedProcess {
	if r.members == nil {
		r.members, r.exited = map[int]*member{}, map[int]exitedMember{}
	}
	r.pass++
	for lease, pids := range l.inside {
		for _, pid := range pids {
			s, ok := r.members[pid]
			if !ok || s.lease != lease {
				st, err := l.stat(pid)
				if err != nil {
					continue
				}
				r.add(lease, pid, st.Start, l.at)
				s = r.members[pid]
			}
			s.lastInside, s.pass = l.at, r.pass // The start time was read when it was added: see member.same.
		}
	}
	out := map[int]escapedProcess{}
	r.observeNew(l, out)
	r.observeOutside(l, out)
	for pid, e := range r.exited {
		_, again := slices.BinarySearch(l.all, pid)
		if again { // A zombie still has its pid.
			st, err := l.stat(pid)
			again = err == nil && !st.Dead()
		}
		if again || l.at > e.at+recentlyExited {
			delete(r.exited, pid)
		}
	}
	r.previous = l.all
	return slices.SortedFunc(maps.Values(out), func(a, b escapedProcess) int { return cmp.Compare(a.pid, b.pid) })
}

// observeNew checks the processes that started since the last pass: a child may leave before it was ever observed inside,
// and a process that left has its children outside.
func (r *tracker) observeNew(l snapshot, out map[int]escapedProcess) {
	var started []procfs.Stat
	for _, pid := range added(r.previous, l.all) {
		if _, ok := r.members[pid]; ok {
			continue
		}
		st, err := l.stat(pid)
		if err != nil || st.Dead() {
			continue
		}
		if at, ok := l.where(pid); ok && at.lease != "" {
			if _, live := l.startTimes[at.lease]; live {
				r.add(at.lease, pid, st.Start, l.at) // It started after the processes of its lease were read.
			}
			continue
		}
		started = append(started, st)
	}
	// A child may come before its parent in the list.
	for grew := true; grew; {
		grew = false
		for i := range started {
			st := &started[i]
			if st.PID == 0 {
				continue
			}
			if lease, why, ok := r.descendant(*st, l); ok {
				grew = r.report(*st, lease, why, l, out) || grew
				st.PID = 0
			}
		}
	}
}

// added returns the pids in now that are not in before; both lists ascend.
func added(before, now []int) []int {
	var out []int
	i := 0
	for _, pid := range now {
		for i < len(before) && before[i] < pid {
			i++
		}
		if i == len(before) || before[i] != pid {
			out = append(out, pid)
		}
	}
	return out
}

// descendant returns the lease that a process belongs to because its parent is a member, or its session started inside.
func (r *tracker) descendant(st procfs.Stat, l snapshot) (lease, why string, ok bool) {
	if s, on := r.members[st.PPID]; on && l.startTimes[s.lease].precedes(st) {
		// The parent runs: else the process would have another one.
		if p, err := l.stat(st.PPID); err == nil && s.same(p) && p.Start <= st.Start {
			return s.lease, hasItsParent, true
		}
	}
	if s, on := r.members[st.Session]; on && st.Session != st.PID && st.Start >= s.start &&
		l.startTimes[s.lease].precedes(procfs.Stat{PID: st.Session, Start: s.start}) {
		// The kernel does not reuse the pid while the session has a process.
		if p, err := l.stat(st.Session); err != nil || s.same(p) {
			return s.lease, hasItsLeader, true
		}
	}
	if e, on := r.exited[st.Session]; on && l.startTimes[e.lease].precedes(st) {
		if p, err := l.stat(st.Session); err != nil || p.Dead() {
			return e.lease, hasItsLeader, true
		}
	}
	return "", "", false
}

// maxParents is how many parents are read.
const maxParents = 64

// descendantByParents is descendant for a process that was not checked when it started: its parents are read too.
func (r *tracker) descendantByParents(pid int, l snapshot) (escapedProcess, bool) {
	first, err := l.stat(pid)
	if err != nil || first.Dead() {
		return escapedProcess{}, false
	}
	for st, n := first, 0; n < maxParents && st.PID > 1; n++ {
		if lease, why, ok := r.descendant(st, l); ok && l.startTimes[lease].precedes(first) {
			found := map[int]escapedProcess{}
			r.report(first, lease, why, l, found)
			escaped, ok := found[pid]
			return escaped, ok
		}
		up, err := l.stat(st.PPID)
		if err != nil || up.Start > st.Start {
			break
		}
		st = up
	}
	return escapedProcess{}, false
}

// report adds a process to the lease that it belongs to, and to out if it runs outside. It returns whether it does.
func (r *tracker) report(st procfs.Stat, lease, why string, l snapshot, out map[int]escapedProcess) bool {
	at, ok := l.where(st.PID)
	if !ok || at.managed {
		return false // It exited, is in a lease, or is about to enter one.
	}
	r.add(lease, st.PID, st.Start, l.at)
	out[st.PID] = escapedProcess{lease: lease, pid: st.PID, start: st.Start, name: st.Name, path: at.path, why: why}
	return true
}

// observeOutside finds where the members are that this pass did not find inside.
func (r *tracker) observeOutside(l snapshot, out map[int]escapedProcess) {
	for pid, s := range r.members {
		if s.pass == r.pass {
			continue
		}
		if _, reported := out[pid]; reported {
			continue
		}
		st, err := l.stat(pid)
		at, there := location{}, false
		if err == nil && s.same(st) && !st.Dead() {
			at, there = l.where(pid)
		}
		_, live := l.startTimes[at.lease]
		switch {
		case !there:
			r.remove(pid, l)
		case at.lease != "" && at.lease != s.lease && live:
			r.add(at.lease, pid, st.Start, l.at) // It requested a lease of its own.
		case at.lease == "" && !at.managed:
			s.start = st.Start
			out[pid] = escapedProcess{lease: s.lease, pid: pid, start: st.Start, name: st.Name, path: at.path, why: wasInside}
		}
	}
}

// empty reports whether there is no member.
func (r *tracker) empty() bool { return len(r.members) == 0 }

// hasLease reports whether a lease has a member.
func (r *tracker) hasLease(lease string) bool {
	for _, s := range r.members {
		if s.lease == lease {
			return true
		}
	}
	return false
}
