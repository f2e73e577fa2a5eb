package quota

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/enumeration"
)

// The simulation: hardware time slicing is ideal processor sharing between the leases that have queued work. A thawed lease
// keeps its queue filled, the queue of a frozen one runs empty. The sampler names one busy lease every 139 ms. Context
// switches cost nothing, unlike on hardware: the figures are the scheduler's error, not the hardware's.

const tick = 500 * time.Microsecond

type worker struct {
	lease      string
	share      float64
	depth      time.Duration // of the queue
	work, host time.Duration // instead of a queue: work on the GPU, then wait for the host
	cap        *float64

	frozen                  bool
	limit, queue, think     time.Duration
	busy                    time.Duration
	frozenAt, longestFrozen time.Duration
}

type sim struct {
	t          testing.TB
	s          *Scheduler
	r          *rand.Rand
	now        time.Duration
	ws         []*worker
	wake       time.Duration
	sampleAt   time.Duration
	feedAt     time.Duration
	pending    []Sample
	busy       time.Duration
	newest     bool // the driver reports only the newest sample of each lease
	readOnThaw bool // samples are read when the scheduler requests them, not every second
	jitter     float64
	switchTime time.Duration
	freezes    int
}

func newSim(t testing.TB, cfg Config, seed uint64, ws ...*worker) *sim {
	r := rand.New(rand.NewPCG(seed, 1))
	cfg.Rand, cfg.Raw = r.Float64, true
	m := &sim{t: t, s: NewScheduler(cfg), r: r, ws: ws, jitter: 0.3, sampleAt: time.Duration(r.Float64() * float64(139*time.Millisecond))}
	m.members()
	return m
}

func (m *sim) members() {
	var list []Member
	for _, w := range m.ws {
		list = append(list, Member{Lease: w.lease, Grant: w.lease, Share: w.share, Cap: w.cap, Active: true})
		w.limit = w.depth
	}
	m.s.SetMembers(m.now, list)
}

func (m *sim) find(lease string) *worker {
	for _, w := range m.ws {
		if w.lease == lease {
			return w
		}
	}
	m.t.Fatalf("an action on %q", lease)
	return nil
}

// act carries out the scheduler's actions until it returns a wait.
func (m *sim) act() {
	for range 1000 {
		a := m.s.Next(m.now)
		switch a.Kind {
		case Wait:
			if a.Until <= m.now {
				m.t.Fatalf("at %v the wait ends at %v: %s", m.now, a.Until, a.Reason)
			}
			m.wake = a.Until
			return
		case Freeze:
			w := m.find(a.Lease)
			if w.frozen {
				m.t.Fatalf("frozen twice: %s", a.Lease)
			}
			w.frozen, w.frozenAt = true, m.now
			m.freezes++
			m.s.Froze(a.Lease, m.now, m.switchTime, nil)
		case Thaw:
			if a.ReadSamples && m.readOnThaw {
				m.feed()
			}
			w := m.find(a.Lease)
			if !w.frozen {
				m.t.Fatalf("thawed twice: %s", a.Lease)
			}
			w.frozen = false
			w.longestFrozen = max(w.longestFrozen, m.now-w.frozenAt)
			w.limit = time.Duration(float64(w.depth) * (1 + m.jitter*(2*m.r.Float64()-1)))
			m.s.Thawed(a.Lease, m.now, m.switchTime, nil)
		default:
			m.t.Fatalf("action %+v", a)
		}
	}
	m.t.Fatal("the scheduler never waits")
}

func (m *sim) step() {
	if m.now >= m.wake {
		m.act()
	}
	for _, w := range m.ws {
		switch {
		case w.frozen:
		case w.work == 0:
			if w.queue < w.limit {
				w.queue = min(w.limit, w.queue+20*tick)
			}
		case w.queue <= 0:
			if w.think -= tick; w.think <= 0 {
				w.queue, w.think = w.work, w.host
			}
		}
	}
	var act []*worker
	for _, w := range m.ws {
		if w.queue > 0 {
			act = append(act, w)
		}
	}
	for left := tick; len(act) != 0 && left > 0; {
		part := left / time.Duration(len(act))
		if part == 0 {
			break
		}
		for _, w := range act {
			part = min(part, w.queue)
		}
		next := act[:0]
		for _, w := range act {
			w.queue -= part
			w.busy += part
			m.busy += part
			left -= part
			if w.queue > 0 {
				next = append(next, w)
			}
		}
		act = next
	}
	if m.now >= m.sampleAt {
		m.sampleAt += 139 * time.Millisecond
		var on []*worker
		for _, w := range m.ws {
			if w.queue > 0 {
				on = append(on, w)
			}
		}
		if len(on) != 0 {
			m.pending = append(m.pending, Sample{Lease: on[m.r.IntN(len(on))].lease, Time: m.now})
		}
	}
	if m.now >= m.feedAt && !m.readOnThaw {
		m.feedAt += time.Second
		m.feed()
	}
	m.now += tick
}

// feed passes the samples since the last call to the scheduler.
func (m *sim) feed() {
	upTo := m.now
	if m.newest {
		latest := map[string]time.Duration{}
		for _, x := range m.pending {
			latest[x.Lease] = x.Time
			upTo = x.Time
		}
		m.pending = m.pending[:0]
		for lease, at := range latest {
			m.pending = append(m.pending, Sample{lease, at})
		}
		if len(latest) == 0 {
			return
		}
	}
	m.s.Observe(m.now, upTo, m.pending)
	m.pending = nil
	m.wake = 0 // the caller calls Next again after Observe
}

// newestOnly makes the sampler report only the newest samples, as drivers do.
func (m *sim) newestOnly(readOnThaw bool) *sim {
	m.newest, m.readOnThaw, m.s.cfg.Raw = true, readOnThaw, false
	return m
}

// run simulates for d and returns each worker's busy time and the GPU's.
func (m *sim) run(d time.Duration) ([]time.Duration, time.Duration) {
	out := make([]time.Duration, len(m.ws))
	for i, w := range m.ws {
		out[i] = -w.busy
	}
	total := -m.busy
	for end := m.now + d; m.now < end; {
		m.step()
	}
	for i, w := range m.ws {
		out[i] += w.busy
	}
	return out, total + m.busy
}

// bias is the difference between the busy shares and the entitled ones in percentage points: the largest, and that of the
// first worker.
func bias(busy []time.Duration, ws []*worker) (worst, first float64) {
	var total, shares float64
	for i, w := range ws {
		total += float64(busy[i])
		shares += w.share
	}
	for i, w := range ws {
		d := 100 * (float64(busy[i])/total - w.share/shares)
		if i == 0 {
			first = d
		}
		worst = max(worst, math.Abs(d))
	}
	return worst, first
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// TestShareError checks the scheduler's error bounds: the mean error of the shares over 200 s after a warm-up of 30 s, and
// the root mean square and the worst over windows of 10 s. Without freezing these loads are wrong by 15 to 40 points, as
// TestWithoutFreezingSharesAreEqual shows.
func TestShareError(t *testing.T) {
	const allSeeds = 8
	seeds := allSeeds / enumeration.Stride(allSeeds)
	for _, tc := range []struct {
		name                   string
		ws                     []worker
		round                  time.Duration
		mean, rms, worst, busy float64
	}{
		{"30/70, queues 100/100 ms", []worker{{share: 30, depth: ms(100)}, {share: 70, depth: ms(100)}}, 0, 1, 1.5, 5, 0.97},
		{"30/70, queues 400/20 ms", []worker{{share: 30, depth: ms(400)}, {share: 70, depth: ms(20)}}, 0, 1.2, 2.5, 6, 0.97},
		{"10/90, queues 400/5 ms", []worker{{share: 10, depth: ms(400)}, {share: 90, depth: ms(5)}}, 0, 1.2, 2.5, 6, 0.97},
		{"10/20/30/40, queues 200/50/100/20 ms", []worker{{share: 10, depth: ms(200)}, {share: 20, depth: ms(50)}, {share: 30, depth: ms(100)}, {share: 40, depth: ms(20)}}, 0, 1.5, 2, 6, 0.96},
		{"30/70, rounds of 2 s", []worker{{share: 30, depth: ms(400)}, {share: 70, depth: ms(20)}}, 2 * time.Second, 1.2, 3, 8, 0.97},
		{"30/70, queues of 1 s", []worker{{share: 30, depth: ms(1000)}, {share: 70, depth: ms(1000)}}, 0, 2.5, 8, 20, 0.95},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mean, square, worst, busy float64
			windows := 0
			for seed := range seeds {
				ws := make([]*worker, len(tc.ws))
				for i := range ws {
					w := tc.ws[i]
					w.lease = fmt.Sprintf("lease-%d", i)
					ws[i] = &w
				}
				m := newSim(t, Config{Round: tc.round}, uint64(seed), ws...)
				m.run(30 * time.Second)
				sum := make([]time.Duration, len(ws))
				var total time.Duration
				for range 20 {
					b, all := m.run(10 * time.Second)
					for i := range b {
						sum[i] += b[i]
					}
					total += all
					w, first := bias(b, ws)
					square, worst, windows = square+first*first, max(worst, w), windows+1
				}
				w, _ := bias(sum, ws)
				mean += w / float64(seeds)
				busy += float64(total) / float64(200*time.Second) / float64(seeds)
				for _, w := range ws {
					if w.longestFrozen > 5*time.Second {
						t.Errorf("%s was frozen for %v", w.lease, w.longestFrozen)
					}
				}
				for _, u := range m.s.Usage(m.now) {
					t.Logf("seed %d %s: occupancy %v, recent %.3f of entitled %.3f, backlog %v", seed, u.Lease, u.Occupancy, u.Recent, u.Entitled, u.Backlog)
				}
			}
			rms := math.Sqrt(square / float64(windows))
			t.Logf("error %.2f points; over 10 s %.2f rms, %.2f worst; GPU busy %.1f %%", mean, rms, worst, 100*busy)
			if seeds < allSeeds {
				return // The bounds are for the mean of all seeds; a single seed exceeds them by chance.
			}
			if mean > tc.mean || rms > tc.rms || worst > tc.worst || busy < tc.busy {
				t.Errorf("bounds are error %.1f, %.1f rms, %.1f worst, busy %.2f", tc.mean, tc.rms, tc.worst, tc.busy)
			}
		})
	}
}

// TestWithoutFreezingSharesAreEqual checks that the simulation shows what the hardware does by itself: equal parts, whatever
// the shares. Otherwise its other figures would mean nothing.
func TestWithoutFreezingSharesAreEqual(t *testing.T) {
	ws := []*worker{{lease: "a", share: 10, depth: ms(400)}, {lease: "b", share: 90, depth: ms(5)}}
	m := newSim(t, Config{Concurrent: true}, 1, ws...)
	busy, _ := m.run(60 * time.Second)
	if _, first := bias(busy, ws); math.Abs(first-40) > 1 {
		t.Errorf("the share of the lease with a tenth is wrong by %.1f points, want 40", first)
	}
}

// TestSharesConverge checks that equal loads are within five points over ten seconds soon after the start, in nine of ten
// runs.
func TestSharesConverge(t *testing.T) {
	over := 0
	const runs = 100
	for seed := range uint64(runs) {
		ws := []*worker{{lease: "a", share: 30, depth: ms(50)}, {lease: "b", share: 70, depth: ms(50)}}
		m := newSim(t, Config{}, seed, ws...)
		m.switchTime = 300 * time.Microsecond
		m.run(10 * time.Second)
		busy, _ := m.run(10 * time.Second)
		if w, _ := bias(busy, ws); w > 5 {
			over++
		}
	}
	if over > runs/10 {
		t.Errorf("%d of %d runs are wrong by more than five points", over, runs)
	}
	t.Logf("%d of %d runs are wrong by more than five points", over, runs)
}

// TestNewestSamplesOnly checks the shares with drivers that report only the newest sample of each process: they are as good
// when the samples are read at the requested moments, and good for equal loads when they are read once a second.
func TestNewestSamplesOnly(t *testing.T) {
	for _, tc := range []struct {
		name       string
		a, b       int // queues in ms
		readOnThaw bool
		bounds     float64 // of the mean error over a minute, after one minute
	}{
		{"read when requested, equal queues", 100, 100, true, 1.5},
		{"read when requested, one long queue", 400, 20, true, 2},
		{"read when requested, the larger share has the long queue", 20, 400, true, 4.5},
		{"read every second, equal queues", 100, 100, false, 1.5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mean float64
			for seed := range uint64(8) {
				ws := []*worker{{lease: "a", share: 30, depth: ms(tc.a)}, {lease: "b", share: 70, depth: ms(tc.b)}}
				m := newSim(t, Config{}, seed, ws...).newestOnly(tc.readOnThaw)
				m.switchTime = 300 * time.Microsecond
				m.run(time.Minute)
				busy, _ := m.run(time.Minute)
				w, _ := bias(busy, ws)
				mean += w / 8
			}
			t.Logf("error %.2f points", mean)
			if mean > tc.bounds {
				t.Errorf("bound is %.1f", tc.bounds)
			}
		})
	}
}
