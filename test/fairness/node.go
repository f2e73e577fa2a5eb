package fairness

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/quota"
)

// switchTime is how long a freeze or a thaw lasts here. 0.1 to 0.7 ms were measured with up to 256 threads, on a machine
// without a GPU.
const switchTime = 300 * time.Microsecond

// node is one GPU with the processes of its leases.
type node struct {
	sc        Scenario
	v         Variant
	clock     clock
	engine    *engine.Engine
	r         *rand.Rand
	processes []*process
	scheduler *quota.Scheduler
	wake      time.Duration // of the scheduler
	reads     time.Duration // the next query for samples
	read      time.Duration // the last one
	samples   quota.SampleClock
	rowsSince uint64
	jumps     []jump
	freezes   int
	cycle     cycle
}

// jump is a moment at which the system clock was set, by how much in total.
type jump struct{ at, offset time.Duration }

// clock is a clock that its user sets.
type clock struct{ at time.Time }

var start = time.Unix(1_700_000_000, 0)

func (c *clock) Now() time.Time { return c.at }

// AfterFunc is used for calls that wait. No process here makes one.
func (c *clock) AfterFunc(time.Duration, func()) engine.Timer { panic("fairness: a process waits") }

func newNode(sc Scenario, v Variant, mode Mode, seed uint64) *node {
	n := &node{sc: sc, v: v, clock: clock{start}, r: rand.New(rand.NewPCG(seed, 7))}
	sampling := v.Sampling
	sampling.Seed, sampling.Uptime = seed+1, 1234*time.Second
	n.engine = engine.NewSampled(&n.clock, sampling)
	n.engine.SwitchBy(sc.Switching)
	n.reads = time.Duration(n.r.Float64() * float64(time.Second))
	for i, l := range sc.Loads {
		n.processes = append(
			n.processes, &process{
				node: n, Load: l, lease: "lease-" + strconv.Itoa(10+i), grant: "lease-" + strconv.Itoa(10+i), pid: 100 + i,
				exists: l.From == 0,
			},
		)
	}
	for _, p := range n.processes {
		p.start()
	}
	switch mode {
	case Enforced:
		cfg := sc.Config
		cfg.Rand, cfg.Fallback = n.r.Float64, true
		n.scheduler = quota.NewScheduler(cfg)
		n.members()
	case DutyCycle:
		n.cycle.on = true
		n.wake = 0
	case SideBySide:
		n.wake = never
	}
	if sc.Jumps {
		for at := 17 * time.Second; at < sc.Warm+sc.Long; at += 23 * time.Second {
			n.jumps = append(
				n.jumps,
				jump{at, []time.Duration{time.Hour, time.Hour - 3*time.Second, -2 * time.Hour, 0, 400 * time.Millisecond}[len(n.jumps)%5]},
			)
		}
	}
	return n
}

const never = time.Duration(1 << 62)

func (n *node) now() time.Duration { return n.clock.at.Sub(start) }

// members gives the scheduler its leases.
func (n *node) members() {
	var list []quota.Member
	for _, p := range n.processes {
		if p.exists && !p.Outside {
			grant := cmp.Or(p.Grant, p.grant)
			m := quota.Member{
				Lease: p.lease, Grant: grant, Payer: grant, Share: p.Share, Priority: p.Priority, Active: true, LowLatency: p.LowLatency,
			}
			if p.Cap != 0 {
				m.Cap = &p.Cap
			}
			list = append(list, m)
		}
	}
	n.scheduler.SetMembers(n.now(), list)
	n.wake = 0
}

// busy is the time that the GPU worked for each process.
func (n *node) busy() []time.Duration {
	all := n.engine.Busy()
	out := make([]time.Duration, len(n.processes))
	for i, p := range n.processes {
		for _, pid := range p.pids() {
			if b, ok := all[pid]; ok {
				p.busy[pid] = b
			}
		}
		for _, b := range p.busy {
			out[i] += b
		}
	}
	return out
}

// run runs up to a moment.
func (n *node) run(to time.Duration) {
	for {
		next := min(to, max(n.wake, n.now()), n.reads)
		for _, p := range n.processes {
			next = min(next, p.next)
		}
		if next > n.now() {
			n.clock.at = start.Add(next)
		}
		if n.now() >= to {
			return
		}
		for _, p := range n.processes {
			if p.next <= n.now() {
				p.step()
			}
		}
		if n.now() >= n.reads {
			n.query()
			n.reads = n.now() + quota.SamplesEvery
		}
		if n.now() >= n.wake {
			n.act()
		}
	}
}

// act carries out the scheduler's actions until it waits.
func (n *node) act() {
	if n.scheduler == nil {
		n.cycle.act(n)
		return
	}
	for range 10000 {
		a := n.scheduler.Next(n.now())
		switch a.Kind {
		case quota.Wait:
			n.wake = a.Until + n.late()
			return
		case quota.Renew:
		case quota.Freeze:
			n.clock.at = n.clock.at.Add(switchTime)
			if p := n.find(a.Lease); p != nil {
				p.freeze()
			}
			n.freezes++
			n.scheduler.Froze(a.Lease, n.now(), switchTime, nil)
		case quota.Thaw:
			n.clock.at = n.clock.at.Add(switchTime)
			if p := n.find(a.Lease); p != nil {
				p.thaw()
			}
			n.scheduler.Thawed(a.Lease, n.now(), switchTime, nil)
		}
	}
	panic("fairness: the scheduler never waits")
}

// late draws by how much the host is late.
func (n *node) late() time.Duration {
	if n.sc.Late == 0 {
		return 0
	}
	return time.Duration(n.r.Int64N(int64(2 * n.sc.Late)))
}

// find is the process of a lease; nil: it has ended.
func (n *node) find(lease string) *process {
	for _, p := range n.processes {
		if p.lease == lease {
			return p
		}
	}
	return nil
}

// offset is how far the system clock is from the one of the engine at a moment.
func (n *node) offset(at time.Duration) time.Duration {
	var out time.Duration
	for _, j := range n.jumps {
		if at >= j.at {
			out = j.offset
		}
	}
	return out
}

// series returns the samples of the whole GPU that the driver has now, with what is wrong with them.
func (n *node) series(now time.Duration) []engine.SeriesSample {
	newest, oldest := now, time.Duration(0)
	switch n.v.Series {
	case Lags:
		newest -= 3 * time.Second
	case Stops:
		if from := time.Minute; now > from && now < 2*from {
			newest = from
		}
	case Repeats:
		oldest = now - 5*time.Second
	case Restarts:
		oldest = now - now%restarts
	}
	zero := uint64(start.UnixMicro())
	if n.v.Sampling.Clock == engine.SinceBoot {
		zero = uint64((1234 * time.Second).Microseconds())
	}
	out := slices.DeleteFunc(n.engine.Series(0), func(x engine.SeriesSample) bool {
		at := time.Duration(int64(x.Time-zero)) * time.Microsecond
		return at > newest || at < oldest
	})
	if n.v.Series == Unordered {
		n.r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	return out
}

// query reads the samples as the daemon does.
func (n *node) query() {
	if n.scheduler == nil {
		return
	}
	now := n.now()
	if !n.v.NoSeries && n.scheduler.SeriesDue(now) {
		at := quota.Clocks{
			Now:   now,
			Epoch: uint64(n.clock.at.Add(n.offset(now)).UnixMicro()),
			Boot:  uint64((1234*time.Second + now).Microseconds()),
		}
		var list []gpu.SeriesSample
		for _, x := range n.series(now) {
			stamp := x.Time
			if n.v.Sampling.Clock != engine.SinceBoot {
				stamp = uint64(int64(stamp) + n.offset(time.UnixMicro(int64(stamp)).Sub(start)).Microseconds())
			}
			if stamp > n.samples.Since() || n.v.Series == Repeats {
				list = append(list, gpu.SeriesSample{Time: stamp, Percent: x.Percent})
			}
		}
		n.scheduler.ObserveUtilization(now, n.samples.Convert("", at, list))
	}
	n.wake = 0
	if n.scheduler.ProcessesDue(now, n.read) {
		n.queryProcesses(now)
	}
}

func (n *node) queryProcesses(now time.Duration) {
	rows := n.v.Rows.of(now, n.engine.Samples(n.rowsSince))
	sums := map[int]int{}
	for _, x := range rows {
		sums[x.PID] += x.SM
		n.rowsSince = max(n.rowsSince, x.Time)
	}
	parts, leases := map[string]float64{}, map[int]string{}
	for _, p := range n.processes {
		for _, pid := range p.pids() {
			if sum := sums[pid]; sum > 0 {
				lease := p.lease
				if p.Outside {
					lease = "" // as the daemon attributes it
				}
				parts[lease] += float64(sum/len(rows)) / 100
				leases[pid] = lease
			}
		}
	}
	n.scheduler.ObservePIDs(now, leases)
	n.scheduler.ObserveProcesses(now, n.read, now, parts)
	n.read = now
}
