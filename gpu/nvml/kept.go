//go:build cgo

package nvml

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
)

const (
	// keptFor is how long values are kept that the board or its firmware sets, and the counters of the NVLinks: these are four calls for
	// each of up to 18 links, most of all calls of a reading, and are compared by the hour.
	keptFor = time.Minute
	// sharedFor is how long the sensors of a reading of the health serve one of the sensors: the daemon requests it next, and every
	// value is a call into the driver.
	sharedFor = 200 * time.Millisecond
)

// kept is a value that was read before.
type kept[T any] struct {
	readAt time.Time // zero: not yet
	value  T
}

// known reports whether it need not be read again.
func (k *kept[T]) known(now time.Time, lasts time.Duration) bool {
	return !k.readAt.IsZero() && now.Sub(k.readAt) < lasts
}

// read returns a copy of the value, which it reads if that was not done in the last minute. It is nil, and not kept, where the GPU has
// none.
func (k *kept[T]) read(read func() (value *T, ok bool)) *T {
	now := time.Now()
	if !k.known(now, keptFor) {
		v, ok := read()
		if !ok {
			return nil
		}
		*k = kept[T]{now, *v}
	}
	return new(k.value)
}

// healthSensors are the sensors that belong to the health and to what viewers see.
type healthSensors struct {
	temperature       *int
	memoryTemperature *int
	powerUsage        *uint64 // nil: not reported, or nothing else of the power is
	throttle          []string
}

func sensorsOf(h *gpu.Health) healthSensors {
	s := healthSensors{temperature: h.Temperature, memoryTemperature: h.MemoryTemperature, throttle: h.Throttle}
	if h.Power != nil {
		s.powerUsage = new(h.Power.Usage)
	}
	return s
}
