package quota

import (
	"time"
)

// samplesPerSecond is how many utilisation samples a driver keeps for one second: 72 in ten. Each names one process.
const samplesPerSecond = 7.2

// Share is a lease's part of a GPU's time as the driver's samples tell it, 0…1, with its standard error: at one half and
// over one second the error is 0.19, over ten 0.06. Nobody should act on it fast.
type Share struct {
	Part     float64
	StdErr   float64
	Samples  int
	OfWindow time.Duration
}
