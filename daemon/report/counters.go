package report

import (
	"sync/atomic"
)

// counters count what the daemon did, so that a test can prove that it did nothing.
type counters struct {
	Converges    atomic.Uint64 // runs of the converge loop
	SliceWrites  atomic.Uint64 // changes of slices
	FilterWrites atomic.Uint64 // changes of login filters for the start or end of a lease
	Steps        atomic.Uint64 // steps carried out
	CDIWrites    atomic.Uint64 // CDI specs written or removed
	// MemoryLimitWrites are limits of GPU memory that the driver was asked to set or remove.
	MemoryLimitWrites atomic.Uint64
	Freezes           atomic.Uint64
	Drifts            atomic.Uint64 // differences that were made outside gpushare and corrected
	Renders           atomic.Uint64 // of the status
	EscapeSearches    atomic.Uint64 // for processes that left their lease, that have ended
}
