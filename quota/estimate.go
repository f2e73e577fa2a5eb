package quota

import (
	"math"
	"time"

	"github.com/gpushare/gpushare/gpu"
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

// Shares estimates each lease's part from samples of one window that came one by one; Busy is for answers that are added
// up by process. lease says whose a process is, "" for nobody's.
func Shares(samples []gpu.UtilSample, window time.Duration, lease func(pid int) string) map[string]Share {
	out := map[string]Share{}
	n := samplesPerSecond * window.Seconds()
	if n <= 0 {
		return out
	}
	for _, x := range samples {
		if x.SM <= 0 {
			continue
		}
		id := lease(x.PID)
		sh := out[id]
		sh.Samples++
		out[id] = sh
	}
	for id, sh := range out {
		sh.Part = min(1, float64(sh.Samples)/n)
		sh.StdErr = math.Sqrt(sh.Part * (1 - sh.Part) / n)
		sh.OfWindow = window
		out[id] = sh
	}
	return out
}
