package report

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/internal/ledger"
)

// Reporter has the log, the conditions, the events, the operations, the counters and the audit ledger. All parts of the daemon
// share it.
type Reporter struct {
	Log *slog.Logger
	Now func() time.Time
	// Generation is that of the spec in force, for the audit; nil: 0.
	Generation func() uint64

	Conditions *conditions
	Events     *broker
	Operations *operations
	Counters   *counters
	XIDs       *xids
	Audits     *ledger.Ledger // nil: no audit
	// SavePoint keeps the last line of the audit outside of its files and of its anchor; nil: it is not kept.
	SavePoint func(ledger.Point) error
	auditor   auditor
	lost      chan struct{} // an entry of the audit was lost
	removals  atomic.Uint64 // of files of the audit that were reported

	gpus    *gpuNames
	version atomic.Uint64 // of what status shows
}

// NewReporter returns a Reporter without an audit ledger.
func NewReporter(log *slog.Logger, now func() time.Time) *Reporter {
	gpus, events := &gpuNames{}, NewBroker(now)
	events.gpus = gpus
	return &Reporter{
		Log:        log,
		Now:        now,
		Conditions: newConditions(now, gpus),
		Events:     events,
		gpus:       gpus,
		Operations: &operations{now: now},
		Counters:   &counters{},
		XIDs:       &xids{},
		lost:       make(chan struct{}, 1),
	}
}

// Invalidate says that something that status shows has changed. It may be called with any lock held.
func (r *Reporter) Invalidate() { r.version.Add(1) }

// Version counts the calls of Invalidate. A status is up to date while the version is the one from before it was read.
func (r *Reporter) Version() uint64 { return r.version.Load() }

// Close closes the audit ledger.
func (r *Reporter) Close() {
	if r.Audits == nil {
		return
	}
	r.CountedNow(true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.Audits.Close(ctx); err != nil {
		r.Log.Warn("cannot close the audit ledger", "error", err)
		return
	}
	if end, err := r.Audits.Flush(ctx); err == nil {
		r.keepPoint(end.Point())
	}
}
