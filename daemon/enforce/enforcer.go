package enforce

import (
	"time"

	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// Enforcer carries out the quotas of GPU memory and GPU time.
type Enforcer struct {
	*report.Reporter
	State    *state.State
	Driver   gpu.Driver
	Observer *observe.Observer
	Freezer  freezer // freezes only while gpushare-thaw can thaw; nil: nothing can be frozen
	Table    *lease.Table
	Samples  *observe.Samples
	// SampleInterval returns the time between two samples.
	SampleInterval func() time.Duration
	Attribution    *attribution.Attribution
	Stopper        *stop.Stopper
	Recorder       Recorder // nil: no account is kept

	Wake         loop.Wake // a lease started: the next sample is due
	Shares       Shares
	tasks        loop.Group   // the loops that schedule GPU time
	stopAttempts stopAttempts // only the sample loop uses it
}
