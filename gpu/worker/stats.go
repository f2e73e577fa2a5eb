package worker

import (
	"maps"
	"sync"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Stats counts the client's operations since its creation.
type Stats struct {
	// Bounds are the upper edges of the buckets; one more bucket counts slower operations.
	Bounds []time.Duration `json:"bounds"`
	Ops    map[Op]OpStats  `json:"ops"`
	// Messages counts requests that were sent, without cancellations.
	Messages uint64 `json:"messages"`
	// Writes counts requests that change the node. Converging twice adds none the second time.
	Writes uint64 `json:"writes"`
	// Starts counts workers that answered, Crashes those that ended without a request of the client, Timeouts operations
	// past their deadline, EventsDropped events that were dropped because the reader was slow.
	Starts        uint64 `json:"starts"`
	Crashes       uint64 `json:"crashes"`
	Timeouts      uint64 `json:"timeouts"`
	EventsDropped uint64 `json:"events_dropped"`
	// Readings is the time that operations that only read spent inside the driver, by GPU.
	Readings map[gpu.UUID]time.Duration `json:"readings"`
}

// OpStats is the latency of one operation, from sending the request to its reply.
type OpStats struct {
	Count   uint64        `json:"count"`
	Errors  uint64        `json:"errors"`
	Buckets []uint64      `json:"buckets"` // by Stats.Bounds, not cumulative
	Sum     time.Duration `json:"sum"`
	Max     time.Duration `json:"max"`
	Driver  time.Duration `json:"driver"` // the part of Sum that was spent inside the driver
}

// latencyBounds ranges from a cached reading to a change of the MIG mode.
func latencyBounds() []time.Duration {
	const us, ms, s = time.Microsecond, time.Millisecond, time.Second
	return []time.Duration{
		50 * us, 100 * us, 250 * us, 500 * us, 1 * ms, 2500 * us, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms,
		250 * ms, 500 * ms, 1 * s, 2500 * ms, 5 * s, 10 * s, 30 * s, 60 * s,
	}
}

// recorder collects Stats.
type recorder struct {
	mu    sync.Mutex // guards stats
	stats Stats
}

func newRecorder() *recorder {
	return &recorder{stats: Stats{Bounds: latencyBounds(), Ops: make(map[Op]OpStats), Readings: make(map[gpu.UUID]time.Duration)}}
}

// with changes the counters under the lock.
func (r *recorder) with(f func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.stats)
}

// sent counts one request.
func (r *recorder) sent(info opInfo) {
	r.with(func(s *Stats) {
		s.Messages++
		if info.write {
			s.Writes++
		}
	})
}

// answered counts one reply.
func (r *recorder) answered(op Op, info opInfo, id gpu.UUID, elapsed, driver time.Duration, failed bool) {
	r.with(func(s *Stats) {
		if !info.write && id != "" {
			s.Readings[id] += driver
		}
		o := s.Ops[op]
		if o.Buckets == nil {
			o.Buckets = make([]uint64, len(s.Bounds)+1)
		}
		i := 0
		for i < len(s.Bounds) && elapsed > s.Bounds[i] {
			i++
		}
		o.Buckets[i]++
		o.Count++
		if failed {
			o.Errors++
		}
		o.Sum += elapsed
		o.Driver += driver
		o.Max = max(o.Max, elapsed)
		s.Ops[op] = o
	})
}

// snapshot returns a copy.
func (r *recorder) snapshot() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.stats
	out.Bounds = append([]time.Duration(nil), out.Bounds...)
	out.Ops, out.Readings = maps.Clone(out.Ops), maps.Clone(out.Readings)
	for op, o := range out.Ops {
		o.Buckets = append([]uint64(nil), o.Buckets...)
		out.Ops[op] = o
	}
	return out
}

// readings is the time that readings of one GPU spent inside the driver.
func (r *recorder) readings(id gpu.UUID) (spent time.Duration) {
	r.with(func(s *Stats) { spent = s.Readings[id] })
	return spent
}
