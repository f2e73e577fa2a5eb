package health

import (
	"context"
	"sync"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

const (
	// sensorsAge is how old sensors may be for someone who looks now. It bounds what all viewers together cost.
	sensorsAge = time.Second
	// sensorsWait is how long a viewer waits. A GPU that is busy with something else, as with the creation of an instance, shows
	// what was read before.
	sensorsWait = 250 * time.Millisecond
)

// sensed is what was read of the sensors of one GPU.
type sensed struct {
	reading chan struct{} // closed when the reading that is under way ends; nil: there is none
	tried   time.Time     // when the last one began
	last    *gpu.Sensors
	readAt  time.Time
}

// ReadSensors reads the sensors of the GPUs that answer, where they are older than sensorsAge, and waits no longer than sensorsWait.
// It is for viewers: the loops that enforce something do not pay for it.
func (k *Health) ReadSensors(ctx context.Context) {
	node := k.Observed()
	if node.DriverErr != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sensorsWait)
	defer cancel()
	var all sync.WaitGroup
	for i := range node.GPUs {
		if g := &node.GPUs[i]; g.Err == nil {
			all.Go(func() { k.readSensors(ctx, g.Identity.UUID) })
		}
	}
	all.Wait()
}

// readSensors reads one GPU, or waits for the reading that is under way.
func (k *Health) readSensors(ctx context.Context, id gpu.UUID) {
	now := k.Now()
	k.mu.Lock()
	s := &k.ofLocked(id).sensors
	busy := s.reading
	if busy == nil && now.Sub(s.tried) < sensorsAge {
		k.mu.Unlock()
		return
	}
	if busy == nil {
		s.reading, s.tried = make(chan struct{}), now
	}
	k.mu.Unlock()
	if busy != nil {
		select {
		case <-busy:
		case <-ctx.Done():
		}
		return
	}
	read, err := k.Driver.Sensors(ctx, id)
	k.mu.Lock()
	close(s.reading)
	s.reading = nil
	if err == nil {
		s.last, s.readAt = &read, now
	}
	k.mu.Unlock()
	if err == nil {
		k.Invalidate()
	}
}

// senseInTime reads the sensors with the health, for those who look without asking for a reading, as a scrape.
func (k *Health) senseInTime(ctx context.Context, id gpu.UUID) {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	k.readSensors(ctx, id)
}

// Sensors is what was last read of the sensors of a GPU, for a viewer or for its health; nil if nothing was.
func (k *Health) Sensors(id gpu.UUID) *api.Sensors {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.ofLocked(id)
	read, at := g.sensors.last, g.sensors.readAt
	if read == nil || isNothing(read) {
		return nil
	}
	out := &api.Sensors{
		ReadAt: at, Temperature: read.Temperature, MemoryTemperature: read.MemoryTemperature, Throttle: read.Throttle,
		PowerWatts: watts(read.PowerUsage), PowerLimitWatts: watts(read.PowerLimit), FanPercent: read.Fan,
	}
	if c := read.Clocks; c != nil {
		out.Clocks = new(api.Clocks(*c))
	}
	return out
}

// isNothing reports whether the driver gave no reading at all.
func isNothing(s *gpu.Sensors) bool {
	return s.Temperature == nil && s.MemoryTemperature == nil && s.PowerUsage == nil && s.PowerLimit == nil && s.Throttle == nil &&
		s.Clocks == nil &&
		s.Fan == nil
}

func watts(milliwatts *uint64) *float64 {
	if milliwatts == nil {
		return nil
	}
	return new(float64(*milliwatts) / 1000)
}
