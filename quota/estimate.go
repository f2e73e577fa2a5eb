package quota

import (
	"time"
)

// samplesPerSecond is how many utilisation samples a driver keeps for one second: 72 in ten. Each names one process.
const samplesPerSecond = 7.2

// Share is a lease's part of a GPU's time, 0…1, as estimated from the driver's samples, with its standard error: for a share
// of one half the error is 0.19 over one second and 0.06 over ten. It is too uncertain for quick decisions.
type Share struct {
	Part     float64
	StdErr   float64
	Samples  int
	OfWindow time.Duration
}
