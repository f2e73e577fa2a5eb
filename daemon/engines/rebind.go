package engines

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

const (
	// rebindInterval is the pause before a cgroup is read again: its processes exited before they were read, or it could not be bound.
	rebindInterval = time.Second
	// quickRebinds is how often a lease that cannot be bound is tried after rebindInterval: most causes pass, as a driver that does not
	// answer for a moment, and its programs wait meanwhile. Then each pause is twice the one before.
	quickRebinds = 5
	// longestRebind is the longest pause: until then a lease is not bound after the cause was corrected.
	longestRebind = time.Minute
)

// conditionNotBound is about a lease whose cgroup has processes and cannot be bound.
const conditionNotBound = "lease-not-bound"

// failure is why a lease could not be bound the last time.
type failure struct {
	err   error
	times int           // it could not be bound
	pause time.Duration // until it is tried again
}

// note records a failure. It is true if the reason is another than the last time: only then it is logged.
func (f *failure) note(err error) (another bool) {
	another = f.err == nil || f.err.Error() != err.Error()
	f.err = err
	f.times++
	f.pause = rebindInterval
	for i := quickRebinds; i < f.times && f.pause < longestRebind; i++ {
		f.pause *= 2
	}
	f.pause = min(f.pause, longestRebind)
	return another
}

// reason is that of the end of a lease which could not be bound.
func (f *failure) reason() string {
	text := f.err.Error()
	if e, ok := errors.AsType[*api.Error](f.err); ok {
		text = e.Message
	}
	return "its cgroup could not be bound: " + text
}

// reportFailure says that a lease is not bound, until it is or has ended.
func (en *Engines) reportFailure(l *lease.Lease, failed *failure) {
	en.Conditions.Set(
		conditionNotBound, l.ID,
		fmt.Sprintf("lease %s is not bound to its cgroup, and its processes have no limits of it: %v", l.ID, failed.err),
		"'gpushare lease show "+l.ID+"' shows the lease; it is tried again within "+longestRebind.String(),
	)
}

// pause waits until a lease is tried again, or gets other cgroups. The changes of the attempt itself do not end it.
func (en *Engines) pause(ctx context.Context, l *lease.Lease, failed *failure) {
	end := en.Now().Add(failed.pause)
	for {
		changed, cancel := en.waiters.next(ctx, l.ID) // before the lease is read
		now, ok := en.Table.Get(l.ID)
		left := end.Sub(en.Now())
		if !ok || !now.AwaitsCgroup() || !slices.Equal(now.Cgroups(), l.Cgroups()) || left <= 0 {
			cancel()
			return
		}
		loop.Pause(changed, left)
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}
