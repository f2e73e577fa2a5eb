package health

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// HeatLasts is how long a reading says that a GPU is hot: some intervals of readings. After that nothing is known.
const HeatLasts = 35 * time.Second

// Heat is whether a GPU is hot, as its readings say. The zero value is a GPU that is not.
type Heat struct {
	Hot         bool
	Temperature int // of the last reading, in °C
	Limit       int // from which it is hot
	ReadAt      time.Time
}

// After is the heat after a reading; nil is one that failed. A hot GPU stays so until it is ClearsBelow under the limit.
func (w Heat) After(h *gpu.Health, p Policy, at time.Time) Heat {
	if h == nil || h.Temperature == nil || limitOf(h, p) == nil {
		return Heat{}
	}
	now := Heat{Temperature: *h.Temperature, Limit: *limitOf(h, p), ReadAt: at}
	now.Hot = now.Temperature >= now.Limit || w.At(at).Hot && now.Temperature > now.Limit-ClearsBelow
	return now
}

// At is the heat at a moment: that of an old reading is not known.
func (w Heat) At(now time.Time) Heat {
	if now.Sub(w.ReadAt) >= HeatLasts {
		return Heat{}
	}
	return w
}
