package leases

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/lease"
)

// timeLoop warns leases before their time ends, and stops them when it has. It also stops leases for requests of higher
// priorities. A node that only observes does neither.
func (ls *Leases) timeLoop(ctx context.Context) {
	for next := time.Duration(0); ; {
		if _, ok := ls.TimeWake.Sleep(ctx, next); !ok {
			return
		}
		next = time.Hour
		ls.preempt(ctx)
		for _, l := range ls.Table.Live() {
			if l.State != lease.Running || l.Expires == nil || !ls.State.Desired().Enforcing() {
				continue
			}
			next = min(next, ls.checkMaxTime(&l))
		}
		next = max(next, time.Millisecond)
	}
}

// checkMaxTime does what is due for one lease and returns when to check it again.
func (ls *Leases) checkMaxTime(l *lease.Lease) time.Duration {
	whole, name := l.Time()
	if whole == nil { // It has an end, so it had a time.
		return time.Hour
	}
	left := l.Expires.Sub(ls.Now())
	if left <= 0 {
		ls.StopInBackground(l, "its "+name+" has passed")
		return time.Hour
	}
	at, next := warning(time.Duration(*whole), left)
	if at > 0 {
		// The text is the same each time, so that a lease is warned once, also by a daemon that was restarted.
		text := fmt.Sprintf("its %s of %s ends in %s: SIGTERM at %s, SIGKILL %s later",
			name, *whole, api.Duration(at), l.Expires.Local().Format(time.TimeOnly), stop.StopGrace)
		if !slices.Contains(l.Notices, text) {
			ls.Table.Notice(l.ID, lease.Notice{Kind: "lease.max-time", Text: text})
		}
	}
	return next
}

// warning returns the last warning that is due with so much time left, 0 for none yet, and the time until the next. A
// lease is warned 10 minutes and 1 minute before its end, unless that is in the first half of its time; if both are, it
// is warned when a tenth is left.
func warning(whole, left time.Duration) (due, next time.Duration) {
	var at []time.Duration
	for _, w := range []time.Duration{10 * time.Minute, time.Minute} {
		if w <= whole/2 {
			at = append(at, w)
		}
	}
	if len(at) == 0 {
		at = []time.Duration{whole / 10}
	}
	for _, w := range at {
		if left > w {
			return due, left - w
		}
		due = w
	}
	return due, left
}
