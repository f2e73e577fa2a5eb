package usage

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// OutsideKey is what use outside of leases is counted to: one user on one GPU.
type OutsideKey struct {
	User string
	GPU  gpu.UUID
}

// OutsideInterval is what the processes of a user that are in no lease used of one GPU between two readings. As of an Interval, what
// was not measured is nil.
type OutsideInterval struct {
	OutsideKey
	From, To time.Time
	// Held: both readings had such processes, so that the interval is time with them. An interval of busy time only is not Held.
	Held   bool
	Busy   *Busy
	Memory *Memory
}

// Length returns the length of the interval; 0 if it ends before it begins.
func (i *OutsideInterval) Length() time.Duration { return max(0, i.To.Sub(i.From)) }

// mostOutside bounds the users × GPUs that are kept at once. What further ones use is counted to Others.
const mostOutside = 4096

// Others is the user of what has no record of its own.
const Others = "others"

// OutsideMeter adds up what is used outside of leases. It is pure, as Meter is, and may be used by one goroutine at a time.
type OutsideMeter struct {
	run   string
	parts int64
	uses  map[OutsideKey]*outsideUse
	ready []Record // of parts that are over
}

// outsideUse is one user on one GPU, in the current part of an hour.
type outsideUse struct {
	OutsideKey
	part, seq int64
	date      time.Time     // the last time of this part
	boot      time.Duration // of date
	sum       fine
	changed   bool // since the last Take

	window  window
	idle    idleness
	beganAt time.Duration // since boot, when idle began to be measured
	seenAt  time.Duration // since boot, when it was last reported
}

// NewOutsideMeter returns an empty meter. run names this run of the daemon, as of a Meter.
func NewOutsideMeter(run string) *OutsideMeter {
	return &OutsideMeter{run: run, uses: map[OutsideKey]*outsideUse{}}
}

// Len returns how many records there are to write.
func (m *OutsideMeter) Len() int { return len(m.uses) + len(m.ready) }

// Record counts an interval.
func (m *OutsideMeter) Record(i *OutsideInterval, now Moment) {
	length := i.Length()
	u := m.use(i.OutsideKey, now)
	if now.Boot-u.seenAt > unknownAfter {
		u.idle, u.window, u.beganAt = idleness{}, window{}, now.Boot // It was away: this is another use.
	}
	u.seenAt, u.date, u.boot, u.changed = now.Boot, now.Date, now.Boot, true
	if i.Held {
		u.sum.held += length
	}
	if i.Busy != nil && length > 0 {
		busy, variance := min(max(0, i.Busy.Time), length), i.Busy.Variance
		if !(variance >= 0 && variance <= math.Pow(length.Seconds(), 2)) { // NaN too
			variance = math.Pow(length.Seconds(), 2)
		}
		u.sum.busyKnown += length
		u.sum.busy += busy
		u.sum.variance += variance
		u.window.add(length, busy, variance)
	}
	if i.Memory != nil {
		u.sum.memoryKnown += length
		u.sum.addMemory(i.Memory.Mean, length)
		u.sum.peak = max(u.sum.peak, i.Memory.Peak)
	}
	if at := now.Boot - u.beganAt; at-u.idle.updatedAt >= Window {
		known, idle := u.idle.update(at, at-u.idle.updatedAt, false, u.window.isBusy(), u.window.known)
		u.sum.idleKnown += known
		u.sum.idle += idle
		u.window = window{}
	}
}

// use returns the use of a key in the current part of an hour.
func (m *OutsideMeter) use(key OutsideKey, now Moment) *outsideUse {
	if m.uses[key] == nil && len(m.uses) >= mostOutside {
		key.User = Others
	}
	u := m.uses[key]
	switch {
	case u == nil:
		u = &outsideUse{OutsideKey: key, date: now.Date, boot: now.Boot, beganAt: now.Boot, seenAt: now.Boot}
		m.uses[key] = u
		m.newPart(u)
	case !hour(u.date).Equal(hour(now.Date)):
		m.ready = append(m.ready, u.record(m.run))
		m.newPart(u)
	}
	return u
}

func (m *OutsideMeter) newPart(u *outsideUse) {
	m.parts++
	u.part, u.seq, u.sum = m.parts, 0, u.sum.carry()
}

// Idle returns for how long the processes of a user were seen idle on a GPU, and whether that was measured at all; ok is false if
// nothing was reported of them lately.
func (m *OutsideMeter) Idle(key OutsideKey, now Moment) (idle Idle, measured, ok bool) {
	u := m.uses[key]
	if u == nil || now.Boot-u.seenAt > unknownAfter {
		return Idle{}, false, false
	}
	known := now.Boot-u.beganAt-u.idle.knownAt <= unknownAfter
	return Idle{Time: u.idle.total, Known: known}, u.idle.measured, true
}

// Take returns the records to write: of parts that are over, and of what has changed.
func (m *OutsideMeter) Take(now Moment) []Record {
	out := m.Peek()
	m.ready = nil
	for key, u := range m.uses {
		if u.changed {
			u.seq++
			u.changed = false
		}
		if now.Boot-u.seenAt > 2*unknownAfter {
			delete(m.uses, key)
		}
	}
	return out
}

// Peek returns what Take would, and keeps it.
func (m *OutsideMeter) Peek() []Record {
	out := slices.Clone(m.ready)
	for _, u := range m.uses {
		if u.changed {
			out = append(out, u.record(m.run))
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Part, b.Part) })
	return out
}

func (u *outsideUse) record(run string) Record {
	return Record{
		Kind:    KindOutside,
		At:      u.date.UnixMilli(),
		Boot:    u.boot.Milliseconds(),
		User:    u.User,
		GPU:     u.GPU,
		Run:     run,
		Part:    u.part,
		Seq:     u.seq + 1,
		Amounts: u.sum.amounts(),
	}
}
