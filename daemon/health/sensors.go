package health

import (
	"context"
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
	// sensorsStale is how old sensors may be that are shown: a GPU that cannot be read has none after that.
	sensorsStale = 3 * interval
)

// sensed is what was read of the sensors of one GPU.
type sensed struct {
	reading chan struct{} // closed when the reading that is under way ends; nil: there is none
	cancel  context.CancelFunc
	tried   time.Time // when the last one began
	last    *gpu.Sensors
	readAt  time.Time
}

// ReadSensors reads the sensors of the GPUs that answer, where they are older than sensorsAge, and waits no longer than sensorsWait.
// It is for viewers: the loops that enforce something do not pay for it. A reading goes on when its viewer goes away.
func (k *Health) ReadSensors(ctx context.Context) {
	node := k.Observed()
	if node.DriverErr != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sensorsWait)
	defer cancel()
	var readings []<-chan struct{}
	for i := range node.GPUs {
		if g := &node.GPUs[i]; g.Err == nil {
			readings = append(readings, k.beginSensing(ctx, g.Identity.UUID, sensorsAge))
		}
	}
	for _, r := range readings {
		awaitReading(ctx, r)
	}
}

// senseInTime reads the sensors with the health, for those who look without asking for a reading, as a scrape. That viewers tried it
// lately is no reason to leave it out.
func (k *Health) senseInTime(ctx context.Context, id gpu.UUID) {
	awaitReading(ctx, k.beginSensing(ctx, id, 0))
}

// awaitReading waits until a reading ends, or ctx does; nil: there is none.
func awaitReading(ctx context.Context, reading <-chan struct{}) {
	if reading == nil {
		return
	}
	select {
	case <-reading:
	case <-ctx.Done():
	}
}

// beginSensing begins to read one GPU, unless that is under way, or began less than age ago. The result is closed when the reading ends;
// nil: there is none for which it is worth to wait.
func (k *Health) beginSensing(ctx context.Context, id gpu.UUID, age time.Duration) <-chan struct{} {
	now := k.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.ofLocked(id).sensors
	switch since := now.Sub(s.tried); {
	case s.reading != nil && since >= sensorsWait:
		return nil // Others waited as long in vain.
	case s.reading != nil, since < age, k.ended:
		return s.reading
	}
	// It is no one's: the one for whom it begins may go away, and others wait for it too.
	ctx, s.cancel = context.WithTimeout(context.WithoutCancel(ctx), observe.Timeout)
	s.reading, s.tried = make(chan struct{}), now
	k.tasks.Go(func() { k.sense(ctx, id, now) })
	return s.reading
}

// sense reads one GPU.
func (k *Health) sense(ctx context.Context, id gpu.UUID, began time.Time) {
	read, err := k.Driver.Sensors(ctx, id)
	k.mu.Lock()
	s := &k.ofLocked(id).sensors
	s.cancel()
	close(s.reading)
	s.reading, s.cancel = nil, nil
	if err == nil {
		s.last, s.readAt = &read, began
	}
	k.mu.Unlock()
	if err == nil {
		k.Invalidate()
	}
}

// endSensing ends the readings that are under way, and lets none begin any more.
func (k *Health) endSensing() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	for _, g := range k.gpus {
		if g.sensors.cancel != nil {
			g.sensors.cancel()
		}
	}
}

// Sensors is what was last read of the sensors of a GPU, for a viewer or for its health; nil if nothing was lately.
func (k *Health) Sensors(id gpu.UUID) *api.Sensors {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.ofLocked(id)
	read, at := g.sensors.last, g.sensors.readAt
	if read == nil || isNothing(read) || k.Now().Sub(at) > sensorsStale {
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
