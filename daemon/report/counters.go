package report

import (
	"sync/atomic"
)

// counters count what the daemon did, so that "nothing" can be proved.
type counters struct {
	Converges    atomic.Uint64 // runs of the converge loop
	SliceWrites  atomic.Uint64 // changes of slices
	FilterWrites atomic.Uint64 // changes of guards for a lease that came or went
	Steps        atomic.Uint64 // steps carried out
	CDIWrites    atomic.Uint64 // files for container runtimes, written or removed
	Freezes      atomic.Uint64
	Drifts       atomic.Uint64 // things that somebody else changed and that were set again
	Renders      atomic.Uint64 // of the status
}
