package stop

import (
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// Stopper stops processes.
type Stopper struct {
	*report.Reporter
	Driver      gpu.Driver
	Table       *lease.Table
	Attribution *attribution.Attribution
	Departures  *Departures
}
