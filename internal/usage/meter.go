package usage

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Moment is one instant on two clocks: the system clock gives the date, the time since boot gives all durations, because no
// program sets it.
type Moment struct {
	Date time.Time
	Boot time.Duration
}

// Lease is what the account keeps of a lease.
type Lease struct {
	ID         string
	Generation uint64
	Tenant     string
	Grant      string
	User       string
	Account    string // of the engine that requested it
	Job        string // the engine's key of it
	GPUs       []gpu.UUID
	Created    time.Time     // when it was requested
	Started    time.Time     // when it began to run
	Wait       time.Duration // between the two
	Exclusive  bool          // it has its GPUs or its MIG instance alone: all its time is occupancy
	Part       *float64      // how much of each of its GPUs it keeps from others, 0…1; nil: not known
	Facts      Facts
}

// lateness is how long after its end intervals of a lease are still counted: samples are settled later than they are taken.
const lateness = 5 * time.Second

// Meter adds up the intervals of the leases that run. It is pure: the caller gives it the time, and writes the records that it
// returns. It may be used by one goroutine at a time.
type Meter struct {
	run    string
	parts  int64
	leases map[leaseKey]*metered
	ready  []Record // of parts that are over, and starts

	unknown uint64 // intervals of leases that are not known, or of a GPU that they do not have
}

type leaseKey struct {
	id         string
	generation uint64
}

// metered is a lease that runs or has just ended.
type metered struct {
	Lease
	at      time.Duration // since boot, when what follows was brought up to date
	elapsed time.Duration // since the start
	gpus    []meteredGPU
	highest uint64 // bytes
	idle    idleness

	taken   bool          // since it started, by Take
	endedAt time.Duration // since boot; 0: it runs
	end     Record
}

// meteredGPU is a lease on one GPU, in the current part of an hour.
type meteredGPU struct {
	id   gpu.UUID
	part int64
	seq  int64
	date time.Time // the last time of this part
	sum  fine

	// For how long the lease had each measured, in its whole life: never longer than the lease ran, whatever is reported.
	occupancyKnown, busyKnown, memoryKnown time.Duration

	window window
	idle   idleness // of the lease on this GPU alone
}

// NewMeter returns a meter without leases. run names this run of the daemon: no two runs have the same name.
func NewMeter(run string) *Meter { return &Meter{run: run, leases: map[leaseKey]*metered{}} }

// Has reports whether a lease is known and runs.
func (m *Meter) Has(id string, generation uint64) bool {
	l := m.leases[leaseKey{id, generation}]
	return l != nil && l.endedAt == 0
}

// Len returns how many leases there are to record.
func (m *Meter) Len() int { return len(m.leases) }

// Start begins the account of a lease. A known lease is not begun again.
func (m *Meter) Start(l Lease, now Moment) {
	if x := m.begin(l, now); x != nil {
		m.ready = append(m.ready, x.start(now.Boot))
	}
}

// start returns the record of the start, which was at a time since boot.
func (l *metered) start(boot time.Duration) Record {
	r := l.record(KindStart, l.Started)
	r.Boot, r.Elapsed, r.Highest = boot.Milliseconds(), 0, 0
	r.Starts, r.Wait, r.LongestWait = 1, max(0, l.Wait).Milliseconds(), max(0, l.Wait).Milliseconds()
	r.Facts = &l.Facts
	return r
}

// StartLate begins the account of a lease that the previous run of the daemon started and did not write: the run was killed. The
// time since then counts as held, and not as measured.
func (m *Meter) StartLate(l Lease, now Moment) {
	key := leaseKey{l.ID, l.Generation}
	if m.leases[key] != nil {
		return
	}
	boot := now.Boot - min(now.Boot, max(0, now.Date.Sub(l.Started)))
	m.Resume(l, &Record{At: l.Started.UnixMilli(), Boot: boot.Milliseconds()}, now)
	m.ready = append(m.ready, m.leases[key].start(boot))
}

func (m *Meter) begin(l Lease, now Moment) *metered {
	key := leaseKey{l.ID, l.Generation}
	if m.leases[key] != nil {
		return nil
	}
	x := &metered{Lease: l, at: now.Boot}
	for _, id := range l.GPUs {
		g := meteredGPU{id: id}
		m.newPart(&g, now.Date)
		x.gpus = append(x.gpus, g)
	}
	m.leases[key] = x
	return x
}

// SetPart sets how much of each of its GPUs a lease keeps from others from now on: it changes with the leases next to it.
func (m *Meter) SetPart(id string, generation uint64, part float64, now Moment) {
	if l := m.leases[leaseKey{id, generation}]; l != nil && l.endedAt == 0 {
		m.advance(l, now)
		l.Part = &part
	}
}

func (m *Meter) newPart(g *meteredGPU, date time.Time) {
	m.parts++
	g.part, g.seq, g.date, g.sum = m.parts, 0, date, g.sum.carry()
}

// Resume goes on with a lease that runs since a previous run of the daemon. last is its last record, nil if there is none. The
// time in between counts as held, and not as measured.
func (m *Meter) Resume(l Lease, last *Record, now Moment) {
	x := m.begin(l, now)
	if x == nil {
		return
	}
	if last == nil {
		x.elapsed = max(0, now.Date.Sub(l.Started))
		x.idle.updatedAt, x.idle.knownAt = x.elapsed, x.elapsed
		for i := range x.gpus {
			x.gpus[i].idle = x.idle
		}
		return
	}
	gap := max(0, now.Boot-time.Duration(last.Boot)*time.Millisecond)
	x.highest, x.idle.total = uint64(max(0, last.Highest)), time.Duration(last.Idle)*time.Millisecond
	x.idle.measured = x.idle.total > 0
	x.elapsed = time.Duration(last.Elapsed) * time.Millisecond
	// The time before is divided into hours as the system clock shows them, if both clocks agree about its length.
	from := last.Time()
	if apart := now.Date.Sub(from) - gap; apart.Abs() > time.Minute {
		from = now.Date.Add(-min(gap, time.Minute))
	}
	for next := hour(from).Add(time.Hour); gap > 0 && next.Before(now.Date); next = next.Add(time.Hour) {
		part := min(gap, next.Sub(from))
		gap -= part
		x.pass(part)
		for i := range x.gpus {
			x.gpus[i].date = from
			m.closePart(x, &x.gpus[i], now.Date)
		}
		from = next
	}
	x.pass(gap)
	x.idle.updatedAt, x.idle.knownAt = x.elapsed, x.elapsed
	for i := range x.gpus { // Each was idle for at least as long as the lease on all of them.
		x.gpus[i].idle = x.idle
	}
}

// pass counts time that the lease had its GPUs.
func (l *metered) pass(d time.Duration) {
	l.elapsed += d
	for i := range l.gpus {
		g := &l.gpus[i]
		g.sum.held += d
		if l.Part != nil {
			g.sum.gpuTime += scale(d, *l.Part)
			g.sum.gpuTimeKnown += d
		}
		if l.Exclusive {
			g.sum.occupancy += d
			g.sum.occupancyKnown += d
			g.occupancyKnown += d
		}
	}
}

// advance brings a lease up to date.
func (m *Meter) advance(l *metered, now Moment) {
	if l.endedAt == 0 && now.Boot > l.at {
		l.pass(now.Boot - l.at)
		l.at = now.Boot
	}
	for i := range l.gpus {
		g := &l.gpus[i]
		if !hour(now.Date).Equal(hour(g.date)) {
			m.closePart(l, g, now.Date)
		}
		g.date = now.Date
	}
}

// closePart returns the part as it is and begins another.
func (m *Meter) closePart(l *metered, g *meteredGPU, date time.Time) {
	m.ready = append(m.ready, l.use(g, m.run))
	m.newPart(g, date)
}

// Rename counts what a lease uses from now on under another name: what it used so far stays under the one that it had.
// It reports whether the name is another one.
func (m *Meter) Rename(id string, generation uint64, tenant, grant string, now Moment) bool {
	l := m.leases[leaseKey{id, generation}]
	if l == nil || l.endedAt != 0 || l.Tenant == tenant && l.Grant == grant {
		return false
	}
	m.advance(l, now)
	for i := range l.gpus {
		m.closePart(l, &l.gpus[i], now.Date)
	}
	l.Tenant, l.Grant = tenant, grant
	return true
}

// Record counts an interval. What is reported for longer than the lease runs, or for more than the interval is long, is not
// counted.
func (m *Meter) Record(i *Interval, now Moment) {
	l := m.leases[leaseKey{i.Lease, i.Generation}]
	if l == nil {
		m.unknown++
		return
	}
	at := slices.IndexFunc(l.gpus, func(g meteredGPU) bool { return g.id == i.GPU })
	if at < 0 {
		m.unknown++
		return
	}
	m.advance(l, now)
	g, length := &l.gpus[at], i.Length()
	if i.Occupancy != nil && !l.Exclusive {
		if d, part := l.fit(&g.occupancyKnown, length); d > 0 {
			g.sum.occupancyKnown += d
			g.sum.occupancy += scale(min(max(0, *i.Occupancy), length), part)
		}
	}
	if i.Busy != nil {
		if d, part := l.fit(&g.busyKnown, length); d > 0 {
			busy, variance := scale(min(max(0, i.Busy.Time), length), part), i.Busy.Variance*part*part
			if !(variance >= 0 && variance <= math.Pow(length.Seconds(), 2)) { // NaN too
				variance = math.Pow(d.Seconds(), 2)
			}
			g.sum.busyKnown += d
			g.sum.busy += busy
			g.sum.variance += variance
			g.window.add(d, busy, variance)
		}
	}
	if i.Memory != nil {
		if d, _ := l.fit(&g.memoryKnown, length); d > 0 {
			g.sum.memoryKnown += d
			g.sum.addMemory(i.Memory.Mean, d)
			g.sum.peak, l.highest = max(g.sum.peak, i.Memory.Peak), max(l.highest, i.Memory.Peak)
		}
	}
}

// fit returns how much of a length is counted, and the part that it is of the length.
func (l *metered) fit(known *time.Duration, length time.Duration) (d time.Duration, part float64) {
	d = min(length, l.elapsed-*known)
	if d <= 0 {
		return 0, 0
	}
	*known += d
	return d, float64(d) / float64(length)
}

func scale(d time.Duration, part float64) time.Duration {
	if part == 1 {
		return d
	}
	return time.Duration(float64(d) * part)
}

// End ends the account of a lease.
func (m *Meter) End(id string, generation uint64, reason, result string, exitCode *int, now Moment) {
	l := m.leases[leaseKey{id, generation}]
	if l == nil || l.endedAt != 0 {
		return
	}
	m.advance(l, now)
	l.endedAt = max(now.Boot, 1)
	l.Facts.Reason, l.Facts.Result, l.Facts.ExitCode = reason, result, exitCode
	l.end = l.record(KindEnd, now.Date)
	l.end.Boot, l.end.Ends, l.end.Exits, l.end.Facts = now.Boot.Milliseconds(), 1, ExitOf(exitCode), &l.Facts
}

// Changes is what Take and Peek return.
type Changes bool

const (
	// AllLeases: what every lease used so far.
	AllLeases Changes = false
	// StartsAndEnds: only leases that started or ended since the last Take, and parts that are over.
	StartsAndEnds Changes = true
)

// Take returns the records to write. All that is in them is also in the next ones of the same parts: a record that could not
// be written is not missed if a later one is.
func (m *Meter) Take(now Moment, which Changes) []Record {
	out := m.Peek(now, which)
	m.ready = nil
	for key, l := range m.leases {
		if !l.isOf(which) {
			continue
		}
		l.taken = true
		for i := range l.gpus {
			l.gpus[i].seq++
		}
		if l.endedAt != 0 {
			l.end.Seq++
			if now.Boot > l.endedAt+lateness {
				delete(m.leases, key)
			}
		}
	}
	return out
}

// Peek returns what Take would, and keeps it.
func (m *Meter) Peek(now Moment, which Changes) []Record {
	for _, l := range m.leases {
		m.advance(l, now)
	}
	out := slices.Clone(m.ready)
	for _, l := range m.sorted() {
		if !l.isOf(which) {
			continue
		}
		for i := range l.gpus {
			out = append(out, l.use(&l.gpus[i], m.run))
		}
		if l.endedAt != 0 {
			end := l.end
			end.Seq++
			end.Highest = int64(min(l.highest, math.MaxInt64))
			out = append(out, end)
		}
	}
	return out
}

func (l *metered) isOf(which Changes) bool {
	return which == AllLeases || !l.taken || l.endedAt != 0
}

func (m *Meter) sorted() []*metered {
	all := make([]*metered, 0, len(m.leases))
	for _, l := range m.leases {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *metered) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// record returns a record of the lease, without amounts.
func (l *metered) record(k Kind, at time.Time) Record {
	r := Record{
		Kind:       k,
		At:         at.UnixMilli(),
		Lease:      l.ID,
		Generation: l.Generation,
		Tenant:     l.Tenant,
		Grant:      l.Grant,
		Account:    l.Account,
		Job:        l.Job,
		User:       l.User,
		Created:    l.Created.UnixMilli(),
		Started:    l.Started.UnixMilli(),
		Elapsed:    l.elapsed.Milliseconds(),
		Highest:    int64(min(l.highest, math.MaxInt64)),
	}
	if len(l.GPUs) > 0 {
		r.GPU = l.GPUs[0]
	}
	return r
}

// use returns the next record of the current part on one GPU.
func (l *metered) use(g *meteredGPU, run string) Record {
	r := l.record(KindUse, g.date)
	r.Boot, r.Idle = l.at.Milliseconds(), l.idle.total.Milliseconds()
	r.GPU, r.Run, r.Part, r.Seq, r.Amounts = g.id, run, g.part, g.seq+1, g.sum.amounts()
	return r
}
