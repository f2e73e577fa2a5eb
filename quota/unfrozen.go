package quota

import "time"

const (
	// UnfrozenSlices is in how many slices of others a lease runs, although it should be frozen, until it is stopped if the spec
	// says so. One or two are no offence: a host that is overloaded delays a freeze too.
	UnfrozenSlices = 3
	// UnfrozenWithin is the time in which these slices are. It has room for two pauses after three failed freezes: whether a lease
	// runs can be measured in each of the three or only in some, so that a shorter time would never have enough of them.
	UnfrozenWithin = 3 * unfreezablePause
)

// Unfrozen counts the slices of others in which one lease ran. The zero value is ready to use.
type Unfrozen struct {
	last [UnfrozenSlices]time.Duration // the latest of them, oldest first
	n    int                           // of last
}

// Ran reports that the lease ran in a slice of others, and returns whether it did so in UnfrozenSlices of them within
// UnfrozenWithin. Freezes that succeed between them change nothing.
func (u *Unfrozen) Ran(now time.Duration) bool {
	copy(u.last[:], u.last[1:])
	u.last[UnfrozenSlices-1] = now
	u.n = min(u.n+1, UnfrozenSlices)
	return u.n == UnfrozenSlices && now-u.last[0] <= UnfrozenWithin
}
