package escape

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/internal/procfs"
)

// roll is the list of those who were seen inside the leases. A lease is more than its cgroup: a tenant with a service
// manager of their own can have a process moved out of it (AttachProcessesToUnit), frozen or not, and whoever looks at
// cgroups alone then sees nothing but a lease that has ended. So members are processes, and one that lives outside has
// left.
//
// It reads nothing by itself: what it decides from is handed to it.
type roll struct {
	seats map[int]*seat
	ended map[int]ended // members that are gone, by pid: sessions that they led may live on
	known []int         // every process of the host at the last look, ascending
	turn  uint64        // counts the looks
}

// ended is a member that is gone.
type ended struct {
	lease string
	at    uint64
}

// mourned is how long, in clock ticks, a member that is gone still tells whose its session is. A pid is not used again while a
// session has its number, and after that it soon may be.
const mourned = 60 * attribution.Ticks

// seat is one process that was seen inside a lease.
type seat struct {
	lease string
	start uint64
	seen  uint64 // when it was last seen inside, in clock ticks since boot
	turn  uint64 // the look that saw it inside last
}

// is tells whether a process that has the seat's pid now is the one that was seen. One that had the pid when it was
// last seen inside is the same, whatever start time was read before: pids do not change.
func (s *seat) is(st procfs.Stat) bool { return st.Start == s.start || st.Start < s.seen }

// place is where a process is now.
type place struct {
	lease string // the lease whose scope holds it, empty when none does
	ours  bool   // it is below our own cgroups: in a lease, or on its way into one
	path  string // of its cgroup
}

// birth is a moment by which processes can be told apart: those that were born before, and those after.
type birth struct {
	tick uint64 // clock ticks since boot
	pid  int    // the last that was given by then; 0 when that was not read
}

// before tells whether a process was born after the moment. The kernel tells times of birth in hundredths of a second, in
// which much happens, but it gives pids in order. One that may be either is not born after.
func (b birth) before(st procfs.Stat) bool {
	if st.Start != b.tick || b.pid == 0 {
		return st.Start > b.tick
	}
	// The numbers begin anew some time. No host gives half of the least number that there can be in one tick.
	const half = 1 << 14
	return st.PID > b.pid && st.PID-b.pid < half || b.pid-st.PID > half
}

// look is what was read for one look at the leases. inside was read before all, and at is before both.
type look struct {
	at     uint64           // clock ticks since boot
	inside map[string][]int // the processes of each lease
	began  map[string]birth // of each lease, also those that ended: who was born before is nobody's
	all    []int            // every process of the host, ascending
	stat   func(pid int) (procfs.Stat, error)
	where  func(pid int) (place, bool) // false: it is gone
}

// leaver is a process that belongs to a lease and lives outside.
type leaver struct {
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

// enter notes a process that is known to be inside, or to have been when its lease was recorded.
func (r *roll) enter(lease string, pid int, start, at uint64) {
	if r.seats == nil {
		r.seats, r.ended = map[int]*seat{}, map[int]ended{}
	}
	r.seats[pid] = &seat{lease: lease, start: start, seen: at}
}

// leave takes a process that is gone off the roll.
func (r *roll) leave(pid int, l look) {
	if s := r.seats[pid]; l.began[s.lease].before(procfs.Stat{PID: pid, Start: s.start}) { // else its session may be older than the lease
		r.ended[pid] = ended{s.lease, l.at}
	}
	delete(r.seats, pid)
}

// see takes one look and tells who lives outside. Those who are told stay on the roll until they are gone.
func (r *roll) see(l look) []leaver {
	if r.seats == nil {
		r.seats, r.ended = map[int]*seat{}, map[int]ended{}
	}
	r.turn++
	for lease, pids := range l.inside {
		for _, pid := range pids {
			s, ok := r.seats[pid]
			if !ok || s.lease != lease {
				st, err := l.stat(pid)
				if err != nil {
					continue
				}
				r.enter(lease, pid, st.Start, l.at)
				s = r.seats[pid]
			}
			s.seen, s.turn = l.at, r.turn // its start was read when it first sat down: see seat.is
		}
	}
	out := map[int]leaver{}
	r.seeNew(l, out)
	r.seeOutside(l, out)
	for pid, e := range r.ended {
		_, again := slices.BinarySearch(l.all, pid)
		if again { // A process that waits to be reaped still has its number.
			st, err := l.stat(pid)
			again = err == nil && !st.Dead()
		}
		if again || l.at > e.at+mourned {
			delete(r.ended, pid)
		}
	}
	r.known = l.all
	return slices.SortedFunc(maps.Values(out), func(a, b leaver) int { return cmp.Compare(a.pid, b.pid) })
}

// seeNew looks at the processes that were born since the last look: a child may leave before it was ever seen inside,
// and one that left has children outside.
func (r *roll) seeNew(l look, out map[int]leaver) {
	var born []procfs.Stat
	for _, pid := range newOnes(r.known, l.all) {
		if _, ok := r.seats[pid]; ok {
			continue
		}
		st, err := l.stat(pid)
		if err != nil || st.Dead() {
			continue
		}
		if at, ok := l.where(pid); ok && at.lease != "" {
			if _, live := l.began[at.lease]; live {
				r.enter(at.lease, pid, st.Start, l.at) // born after its lease was read
			}
			continue
		}
		born = append(born, st)
	}
	// A child may stand before its parent in the list.
	for grew := true; grew; {
		grew = false
		for i := range born {
			st := &born[i]
			if st.PID == 0 {
				continue
			}
			if lease, why, ok := r.kin(*st, l); ok {
				grew = r.accuse(*st, lease, why, l, out) || grew
				st.PID = 0
			}
		}
	}
}

// newOnes gives the numbers of now that are not in before; both ascend.
func newOnes(before, now []int) []int {
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

// kin tells which lease a process belongs to by its birth: its parent is on the roll, or its session began inside.
func (r *roll) kin(st procfs.Stat, l look) (lease, why string, ok bool) {
	if s, on := r.seats[st.PPID]; on && l.began[s.lease].before(st) {
		// The parent lives: else the process would have another one.
		if p, err := l.stat(st.PPID); err == nil && s.is(p) && p.Start <= st.Start {
			return s.lease, hasItsParent, true
		}
	}
	if s, on := r.seats[st.Session]; on && st.Session != st.PID && st.Start >= s.start &&
		l.began[s.lease].before(procfs.Stat{PID: st.Session, Start: s.start}) {
		// Its number is nobody else's as long as somebody is in the session.
		if p, err := l.stat(st.Session); err != nil || s.is(p) {
			return s.lease, hasItsLeader, true
		}
	}
	if e, on := r.ended[st.Session]; on && l.began[e.lease].before(st) {
		if p, err := l.stat(st.Session); err != nil || p.Dead() {
			return e.lease, hasItsLeader, true
		}
	}
	return "", "", false
}

// ancestry is how many parents are asked for.
const ancestry = 64

// kinAbove is kin for a process that was not looked at when it was born: its parents are asked too.
func (r *roll) kinAbove(pid int, l look) (leaver, bool) {
	first, err := l.stat(pid)
	if err != nil || first.Dead() {
		return leaver{}, false
	}
	for st, n := first, 0; n < ancestry && st.PID > 1; n++ {
		if lease, why, ok := r.kin(st, l); ok && l.began[lease].before(first) {
			found := map[int]leaver{}
			r.accuse(first, lease, why, l, found)
			lv, ok := found[pid]
			return lv, ok
		}
		up, err := l.stat(st.PPID)
		if err != nil || up.Start > st.Start {
			break
		}
		st = up
	}
	return leaver{}, false
}

// accuse puts a process on the roll of the lease that it belongs to, and among those outside if that is where it is.
func (r *roll) accuse(st procfs.Stat, lease, why string, l look, out map[int]leaver) bool {
	at, ok := l.where(st.PID)
	if !ok || at.ours {
		return false // gone, in a lease, or on its way into one
	}
	r.enter(lease, st.PID, st.Start, l.at)
	out[st.PID] = leaver{lease: lease, pid: st.PID, start: st.Start, name: st.Name, path: at.path, why: why}
	return true
}

// seeOutside looks where those are who were inside and are not now.
func (r *roll) seeOutside(l look, out map[int]leaver) {
	for pid, s := range r.seats {
		if s.turn == r.turn {
			continue
		}
		if _, told := out[pid]; told {
			continue
		}
		st, err := l.stat(pid)
		at, there := place{}, false
		if err == nil && s.is(st) && !st.Dead() {
			at, there = l.where(pid)
		}
		_, live := l.began[at.lease]
		switch {
		case !there:
			r.leave(pid, l)
		case at.lease != "" && at.lease != s.lease && live:
			r.enter(at.lease, pid, st.Start, l.at) // it asked for a lease of its own
		case at.lease == "" && !at.ours:
			s.start = st.Start
			out[pid] = leaver{lease: s.lease, pid: pid, start: st.Start, name: st.Name, path: at.path, why: wasInside}
		}
	}
}

// empty tells whether nobody is on the roll.
func (r *roll) empty() bool { return len(r.seats) == 0 }

// holds tells whether somebody of a lease is on the roll.
func (r *roll) holds(lease string) bool {
	for _, s := range r.seats {
		if s.lease == lease {
			return true
		}
	}
	return false
}
