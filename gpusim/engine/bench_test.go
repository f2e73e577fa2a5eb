package engine_test

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// BenchmarkHour simulates an hour as the simulation of a scheduler does: four tenants, one at a time for 250 ms each, and
// the series is read every second.
func BenchmarkHour(b *testing.B) {
	for _, c := range []struct {
		name   string
		kernel time.Duration
		queue  int
		step   time.Duration
	}{
		{"queues of 50 ms", 5 * time.Millisecond, 10, 5 * time.Millisecond},
		{"one kernel of 1 ms at a time", time.Millisecond, 1, 2 * time.Millisecond},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				start := time.Unix(1000, 0)
				clock := &manualClock{now: start}
				e := engine.NewSampled(clock, engine.Sampling{Naming: engine.NameInstant, Jitter: 0.1, Seed: 1})
				var contexts []*engine.Context
				for pid := range 4 {
					contexts = append(contexts, e.AddContext(pid, "", engine.Options{Depth: c.queue}))
				}
				var since uint64
				read := time.Second
				for at := time.Duration(0); at < time.Hour; at += c.step {
					contexts[at/(250*time.Millisecond)%4].TryLaunch(c.kernel, c.queue)
					clock.now = start.Add(at)
					if at >= read {
						read += time.Second
						for _, x := range e.Series(since) {
							since = x.Time
						}
					}
				}
				e.Close()
			}
		})
	}
}
