package health

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
)

// Many viewers cost one reading a second. Without viewers the sensors are read with the health, and no more often.
func TestSensorsAreReadOnceForAllViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.Now = time.Now
		var mu sync.Mutex
		reads := 0
		f.sensors = func(context.Context) (gpu.Sensors, error) {
			mu.Lock()
			reads++
			n := reads
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return gpu.Sensors{
				Temperature: new(60 + n),
				PowerUsage:  new(uint64(250_500)),
				PowerLimit:  new(uint64(300_000)),
				Clocks:      &gpu.Clocks{SM: 1410},
			}, nil
		}
		if f.Sensors(gpuA) != nil {
			t.Error("there are sensors before they were read")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { f.readLoop(ctx) })
		time.Sleep(time.Minute - time.Second)
		cancel()
		run.Wait()
		f.tasks.Wait()
		if reads == 0 || reads > f.reads {
			t.Errorf("the loop read the sensors %d times, and the health %d times", reads, f.reads)
		}
		time.Sleep(sensorsAge)
		reads = 0
		version := f.Version()
		for round := range 3 {
			var viewers sync.WaitGroup
			for range 20 {
				viewers.Go(func() { f.ReadSensors(t.Context()) })
			}
			viewers.Wait()
			f.ReadSensors(t.Context())
			if reads != round+1 {
				t.Errorf("after round %d: %d readings", round, reads)
			}
			want := &api.Sensors{
				Temperature: new(61 + round), PowerWatts: new(250.5), PowerLimitWatts: new(300.0), Clocks: &api.Clocks{SM: 1410},
			}
			got := f.Sensors(gpuA)
			want.ReadAt = got.ReadAt
			if diff := cmp.Diff(want, got); diff != "" || time.Since(got.ReadAt) > sensorsAge {
				t.Errorf("read at %s (-want +got):\n%s", got.ReadAt, diff)
			}
			time.Sleep(sensorsAge)
		}
		if f.Version() == version {
			t.Error("the status does not show what was read")
		}
	})
}

// A GPU that does not answer at once, that cannot be read, or that is known not to answer, holds up no viewer.
func TestViewersDoNotWaitForAGPU(t *testing.T) {
	for name, set := range map[string]func(f *fixture, reads *atomic.Int32){
		"it is busy": func(f *fixture, reads *atomic.Int32) {
			f.sensors = func(ctx context.Context) (gpu.Sensors, error) {
				reads.Add(1)
				<-ctx.Done()
				return gpu.Sensors{}, ctx.Err()
			}
		},
		"it fails": func(f *fixture, reads *atomic.Int32) {
			f.sensors = func(context.Context) (gpu.Sensors, error) { reads.Add(1); return gpu.Sensors{}, gpu.ErrLost }
		},
		"it is unresponsive":      func(f *fixture, _ *atomic.Int32) { f.node.GPUs[0].Err = gpu.ErrTimeout },
		"the driver is not there": func(f *fixture, _ *atomic.Int32) { f.node.DriverErr = errors.New("no driver") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.Now = time.Now
				f.sensors = func(context.Context) (gpu.Sensors, error) {
					return gpu.Sensors{
						Temperature: new(48),
						PowerLimit:  new(uint64(400_000)),
						Throttle:    []string{gpu.ThrottlePowerCap},
					}, nil
				}
				f.senseInTime(t.Context(), gpuA)
				before := f.Now()
				time.Sleep(5 * time.Second)
				var reads atomic.Int32
				set(f, &reads)
				began := time.Now()
				for range 3 {
					f.ReadSensors(t.Context())
				}
				if waited := time.Since(began); waited > sensorsWait || reads.Load() > 1 {
					t.Errorf("three viewers waited %s for %d readings", waited, reads.Load())
				}
				want := &api.Sensors{
					ReadAt:          before,
					Temperature:     new(48),
					PowerLimitWatts: new(400.0),
					Throttle:        []string{gpu.ThrottlePowerCap},
				}
				f.endSensing()
				f.tasks.Wait()
				if diff := cmp.Diff(want, f.Sensors(gpuA)); diff != "" {
					t.Errorf("what was read before (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// With a viewer who looks all the time at a board that answers later than a viewer waits, with viewers who go away at once, and with both,
// no one sees old sensors.
func TestViewersDoNotKeepSensorsFromBeingRead(t *testing.T) {
	for name, c := range map[string]struct{ takes, waits, again time.Duration }{
		"a slow board":      {takes: 300 * time.Millisecond, waits: time.Hour, again: 500 * time.Millisecond},
		"one who goes away": {takes: 10 * time.Millisecond, waits: time.Millisecond, again: 10 * time.Millisecond},
		"both":              {takes: time.Second, waits: time.Millisecond, again: 20 * time.Millisecond},
		"no viewer":         {takes: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.Now = time.Now
				f.sensors = func(ctx context.Context) (gpu.Sensors, error) {
					select {
					case <-time.After(c.takes):
						return gpu.Sensors{Temperature: new(60)}, nil
					case <-ctx.Done():
						return gpu.Sensors{}, ctx.Err()
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				var run sync.WaitGroup
				if c.again > 0 {
					run.Go(func() {
						for loop.Pause(ctx, c.again) {
							within, stop := context.WithTimeout(ctx, c.waits)
							f.ReadSensors(within)
							stop()
						}
					})
				}
				run.Go(func() { f.Health.Run(ctx) })
				last, oldest := time.Now(), time.Duration(0)
				for range 300 {
					time.Sleep(100 * time.Millisecond)
					if s := f.Sensors(gpuA); s != nil {
						last = s.ReadAt
					}
					oldest = max(oldest, time.Since(last))
				}
				if most := interval + spacing + c.takes; oldest > most {
					t.Errorf("what is shown was read %s ago, want at most %s", oldest, most)
				}
				cancel()
				run.Wait()
			})
		})
	}
}

// When the daemon stops, a reading that hangs ends, and a viewer who still comes begins none.
func TestReadingsOfSensorsEndWithTheDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.Now = time.Now
		var reads atomic.Int32
		f.sensors = func(ctx context.Context) (gpu.Sensors, error) {
			reads.Add(1)
			<-ctx.Done()
			return gpu.Sensors{}, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { f.Health.Run(ctx) })
		f.ReadSensors(t.Context())
		synctest.Wait()
		cancel()
		began := time.Now()
		run.Wait()
		if waited := time.Since(began); waited > 0 || reads.Load() != 1 {
			t.Errorf("it ended %s later, after %d readings", waited, reads.Load())
		}
		time.Sleep(time.Minute)
		if f.ReadSensors(t.Context()); reads.Load() != 1 {
			t.Error("a reading began after the end")
		}
	})
}
