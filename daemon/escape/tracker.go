package escape

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/internal/procfs"
)

// tracker is the list of those who were seen inside the leases. A lease is more than its cgroup: a tenant with a service
// manager of their own can have a process moved out of it (AttachProcessesToUnit), frozen or not, and whoever looks at
// cgroups alone then sees nothing but a lease that has ended. So members are processes, and one that lives outside has
// left.
//
// It reads nothing by itself: what it decides from is handed to it.
type tracker struct {
	members  map[int]*member
	exited   map[int]exitedMember // members that are gone, by pid: sessions that they led may live on
	previous []int                // every process of the host at the last look, ascending
	pass     uint64               // counts the looks
}

// exitedMember is a member that is gone.
type exitedMember struct {
	lease string
	at    uint64
}

// recentlyExited is how long, in clock ticks, a member that is gone still tells whose its session is. A pid is not used again while a
// session has its number, and after that it soon may be.
const recentlyExited = 60 * attribution.Ticks

// member is one process that was seen inside a lease.
type member struct {
	lease      string
	start      uint64
	lastInside uint64 // when it was last seen inside, in clock ticks since boot
	pass       uint64 // the look that saw it inside last
}

// same tells whether a process that has the seat's pid now is the one that was seen. One that had the pid when it was
// last seen inside is the same, whatever start time was read before: pids do not change.
func (s *member) same(st procfs.Stat) bool { return st.Start == s.start || st.Start < s.lastInside }

// location is where a process is now.
type location struct {
	lease   string // the lease whose scope holds it, empty when none does
	managed bool   // it is below our own cgroups: in a lease, or on its way into one
	path    string // of its cgroup
}

// startTime is a moment by which processes can be told apart: those that were born before, and those after.
type startTime struct {
	tick uint64 // clock ticks since boot
	pid  int    // the last that was given by then; 0 when that was not read
}

// precedes tells whether a process was born after the moment. The kernel tells times of birth in hundredths of a second, in
// which much happens, but it gives pids in order. One that may be either is not born after.
func (b startTime) precedes(st procfs.Stat) bool {
	if st.Start != b.tick || b.pid == 0 {
		return st.Start > b.tick
	}
	// The numbers begin anew some time. No host gives half of the least number that there can be in one tick.
	const half = 1 << 14
	return st.PID > b.pid && st.PID-b.pid < half || b.pid-st.PID > half
}

// snapshot is what was read for one look at the leases. inside was read before all, and at is before both.
type snapshot struct {
	at         uint64               // clock ticks since boot
	inside     map[string][]int     // the processes of each lease
	startTimes map[string]startTime // of each lease, also those that ended: who was born before is nobody's
	all        []int                // every process of the host, ascending
	stat       func(pid int) (procfs.Stat, error)
	where      func(pid int) (location, bool) // false: it is gone
}

// escapedProcess is a process that belongs to a lease and lives outside.
type escapedProcess struct {
	lease      string
	pid        int
	start      uint64
	name, path string
	why        string // how it is known to belong there
}

// Why a process belongs to a lease.
const (
	wasInside    = "it was inside"
	hasItsParent = "its parent is one of the lease's"
	hasItsLeader = "its session began inside"
)

// add notes a process that is known to be inside, or to have been when its lease was recorded.
func (r *tracker) add(lease string, pid int, start, at uint64) {
	if r.members == nil {
		r.members, r.exited = map[int]*member{}, map[int]exitedMember{}
	}
	r.members[pid] = &member{lease: lease, start: start, lastInside: at}
}

// remove takes a process that is gone off the roll.
func (r *tracker) remove(pid int, l snapshot) {
	if s := r.members[pid]; l.startTimes[s.lease].precedes(procfs.Stat{PID: pid, Start: s.start}) { // else its session may be older than the lease
		r.exited[pid] = exitedMember{s.lease, l.at}
	}
	delete(r.members, pid)
}

// observe takes one look and tells who lives outside. Those who are told stay tracked until they are gone.
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
			s.lastInside, s.pass = l.at, r.pass // its start was read when it first sat down: see seat.is
		}
	}
	out := map[int]escapedProcess{}
	r.observeNew(l, out)
	r.observeOutside(l, out)
	for pid, e := range r.exited {
		_, again := slices.BinarySearch(l.all, pid)
		if again { // A process that waits to be reaped still has its number.
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

// observeNew looks at the processes that were born since the last look: a child may leave before it was ever seen inside,
// and one that left has children outside.
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
				r.add(at.lease, pid, st.Start, l.at) // born after its lease was read
			}
			continue
		}
		started = append(started, st)
	}
	// A child may stand before its parent in the list.
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

// added gives the numbers of now that are not in before; both ascend.
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

// descendant tells which lease a process belongs to by its birth: its parent is tracked, or its session began inside.
func (r *tracker) descendant(st procfs.Stat, l snapshot) (lease, why string, ok bool) {
	if s, on := r.members[st.PPID]; on && l.startTimes[s.lease].precedes(st) {
		// The parent lives: else the process would have another one.
		if p, err := l.stat(st.PPID); err == nil && s.same(p) && p.Start <= st.Start {
			return s.lease, hasItsParent, true
		}
	}
	if s, on := r.members[st.Session]; on && st.Session != st.PID && st.Start >= s.start &&
		l.startTimes[s.lease].precedes(procfs.Stat{PID: st.Session, Start: s.start}) {
		// Its number is nobody else's as long as somebody is in the session.
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

// maxParents is how many parents are asked for.
const maxParents = 64

// descendantByParents is kin for a process that was not looked at when it was born: its parents are asked too.
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

// report puts a process tracked of the lease that it belongs to, and among those outside if that is where it is.
func (r *tracker) report(st procfs.Stat, lease, why string, l snapshot, out map[int]escapedProcess) bool {
	at, ok := l.where(st.PID)
	if !ok || at.managed {
		return false // gone, in a lease, or on its way into one
	}
	r.add(lease, st.PID, st.Start, l.at)
	out[st.PID] = escapedProcess{lease: lease, pid: st.PID, start: st.Start, name: st.Name, path: at.path, why: why}
	return true
}

// observeOutside looks where those are who were inside and are not now.
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
			r.add(at.lease, pid, st.Start, l.at) // it asked for a lease of its own
		case at.lease == "" && !at.managed:
			s.start = st.Start
			out[pid] = escapedProcess{lease: s.lease, pid: pid, start: st.Start, name: st.Name, path: at.path, why: wasInside}
		}
	}
}

// empty tells whether nobody is tracked.
func (r *tracker) empty() bool { return len(r.members) == 0 }

// hasLease tells whether somebody of a lease is tracked.
func (r *tracker) hasLease(lease string) bool {
	for _, s := range r.members {
		if s.lease == lease {
			return true
		}
	}
	return false
}
