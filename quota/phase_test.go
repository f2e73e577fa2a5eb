package quota

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"
)

// TestPhases walks the scheduler through leases that come, go, fail and need more or less, and checks that each transition of the table
// is taken, and no other.
func TestPhases(t *testing.T) {
	checkTable(t, phases, func(s *Scheduler, taken func(from, to phase)) { s.entered = taken })
}

// TestClasses does the same with the classes of leases.
func TestClasses(t *testing.T) {
	checkTable(t, classes, func(s *Scheduler, taken func(from, to class)) { s.changed = taken })
}

func checkTable[T comparable](t *testing.T, table map[T][]T, follow func(s *Scheduler, taken func(from, to T))) {
	t.Helper()
	type step struct{ from, to T }
	taken := map[step]bool{}
	for seed := range uint64(100) {
		w := newWalk(seed)
		follow(w.s, func(from, to T) { taken[step{from, to}] = true })
		w.run(2000)
	}
	for from, list := range table {
		for _, to := range list {
			if !taken[step{from, to}] {
				t.Errorf("%v → %v is in the table and is never taken", from, to)
			}
			delete(taken, step{from, to})
		}
	}
	for x := range taken {
		t.Errorf("%v → %v is taken and is not in the table", x.from, x.to)
	}
}

// walk drives a scheduler with leases whose use changes.
type walk struct {
	s      *Scheduler
	next   uint64
	now    time.Duration
	read   time.Duration
	list   []Member
	use    map[string]float64 // what each uses while it runs alone
	frozen map[string]bool
	series bool
}

func newWalk(seed uint64) *walk {
	w := &walk{next: seed*977 + 1, use: map[string]float64{}, frozen: map[string]bool{}, series: seed%3 != 0}
	w.s = NewScheduler(Config{Fallback: seed%2 == 0, Rand: func() float64 { return float64(w.draw(1000)) / 1000 }})
	return w
}

func (w *walk) draw(n uint64) uint64 {
	w.next = w.next*6364136223846793005 + 1442695040888963407
	return (w.next >> 33) % n
}

func (w *walk) run(steps int) {
	for range steps {
		if w.draw(40) == 0 {
			w.change()
		}
		a := w.s.Next(w.now)
		var err error
		if w.draw(200) == 0 {
			err = errors.New("it failed")
		}
		switch a.Kind {
		case Freeze:
			w.frozen[a.Lease] = true
			w.s.Froze(a.Lease, w.now, time.Millisecond, err)
		case Thaw:
			w.frozen[a.Lease] = err != nil
			w.s.Thawed(a.Lease, w.now, time.Millisecond, err)
		case Renew:
		case Wait:
			w.now = min(a.Until, w.read+time.Second)
			if w.draw(300) == 0 {
				w.now += 7 * time.Second // the host does not run
			}
		}
		if w.now >= w.read+time.Second {
			w.observe()
		}
	}
}

// change lets a lease come or go, or changes what it is and what it uses.
func (w *walk) change() {
	id := string(rune('a' + w.draw(4)))
	i := slices.IndexFunc(w.list, func(m Member) bool { return m.Lease == id })
	switch {
	case i >= 0 && w.draw(4) == 0:
		w.list = slices.Delete(w.list, i, i+1)
	case i >= 0 && w.draw(4) == 0:
		m := &w.list[i]
		m.Active, m.Held = w.draw(4) != 0, w.draw(6) == 0
		m.LowLatency = m.Cap == nil && w.draw(5) == 0
	case i >= 0:
		w.use[id] = []float64{0, 0.05, 0.1, 0.6, 1, 1}[w.draw(6)]
	default:
		m := Member{Lease: id, Grant: id, Share: float64(1 + w.draw(9)), Active: true}
		if w.draw(6) == 0 {
			c := 0.2
			m.Cap = &c
		}
		if w.draw(5) == 0 {
			m.LowLatency, m.Share = true, 60
		}
		w.list = append(w.list, m)
		w.use[id] = []float64{0.1, 1}[w.draw(2)]
	}
	w.s.SetMembers(w.now, w.list)
	maps.DeleteFunc(w.frozen, func(id string, _ bool) bool { return w.s.find(id) == nil })
}

// observe reports what the leases that run now used in the last second.
func (w *walk) observe() {
	parts, sum := map[string]float64{}, 0.0
	for _, m := range w.list {
		if !w.frozen[m.Lease] {
			parts[m.Lease] = w.use[m.Lease]
			sum += w.use[m.Lease]
		}
	}
	for id := range parts {
		parts[id] /= max(1, sum)
	}
	w.s.ObserveProcesses(w.now, w.read, w.now, parts)
	if w.series {
		u := Utilization{From: w.read, UpTo: w.now}
		for at := w.read + 139*time.Millisecond; at <= w.now && len(u.Periods) < 60 && sum > 0; at += 139 * time.Millisecond {
			u.Periods = append(u.Periods, Period{End: at, Busy: min(1, sum)})
		}
		w.s.ObserveUtilization(w.now, u)
	}
	w.read = w.now
}
