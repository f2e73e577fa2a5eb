package account

import (
	"context"
	"errors"
	"time"

	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/usage"
)

const (
	// writeInterval is the time between two writings while leases run: with the time that a disk needs, a power cut costs at most
	// a minute.
	writeInterval = 50 * time.Second
	// changeDelay gathers starts and ends of leases in one writing.
	changeDelay = time.Second
	// keepInterval is the time between two checks of old files.
	keepInterval = time.Hour
	// trustAfter is how long the clock has to be as it is before old files are removed, if it is far from the newest file: a node
	// may boot with a wrong clock.
	trustAfter = 24 * time.Hour
	farAhead   = 30 * 24 * time.Hour
	// closeTimeout bounds the last writing.
	closeTimeout = 2 * time.Second
)

// Run writes the account and finds idle leases until ctx ends; then it writes once more.
func (a *Account) Run(ctx context.Context) {
	var loops loop.Group
	loops.Go(func() { a.idleLoop(ctx) })
	loops.Go(func() { a.writeLoop(ctx) })
	loops.Wait()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := a.write(end, usage.AllLeases); err != nil {
		a.Log.Warn("the last part of the account was not written", "error", err)
		a.handOver()
	}
}

func (a *Account) writeLoop(ctx context.Context) {
	var fullAt, keepAt time.Duration // since boot
	for {
		now, which := a.Boot(), usage.StartsAndEnds
		if now >= fullAt {
			fullAt, which = now+keepInterval, usage.AllLeases
		}
		err := a.write(ctx, which)
		if ctx.Err() != nil {
			return
		}
		if now >= keepAt || a.grown(ctx) {
			keepAt = now + keepInterval
			err = errors.Join(err, a.keep(ctx)) // Also after an error: it makes space.
		}
		a.reportResult(err)
		fullAt = min(fullAt, now+a.nextWrite())
		woken, ok := a.wake.Sleep(ctx, max(0, fullAt-a.Boot()))
		if !ok || woken && !loop.Pause(ctx, changeDelay) {
			return
		}
	}
}

// nextWrite returns the time until the next writing: the end of the hour is one, so that each hour has its own use.
func (a *Account) nextWrite() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.meter.Len() == 0 && a.outside.Len() == 0 && len(a.pending.Records()) == 0 {
		return keepInterval
	}
	now := a.Now()
	return min(writeInterval, now.Truncate(time.Hour).Add(time.Hour).Sub(now)+time.Millisecond)
}

// write puts everything on the disk. What fails waits for the next time.
func (a *Account) write(ctx context.Context, which usage.Changes) error {
	if err := a.acquireFiles(ctx); err != nil {
		return err
	}
	defer a.releaseFiles()
	if err := a.open(); err != nil {
		return err
	}
	now := a.now()
	a.mu.Lock()
	for _, r := range a.meter.Take(now, which) {
		a.addLocked(&r)
	}
	if which == usage.AllLeases {
		for _, r := range a.outside.Take(now) {
			a.addLocked(&r)
		}
	}
	a.addLostLocked(now)
	writing := a.pending.Records()
	a.pending, a.pendingOf = usage.Distinct{}, nil
	a.mu.Unlock()
	if len(writing) == 0 {
		return a.store.Unfolded()
	}
	err := a.store.Write(writing)
	if err == nil {
		return errors.Join(a.dropHanded(), a.store.Unfolded(), a.writeLately())
	}
	// A newer record of the same part may have come meanwhile: it counts.
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range writing {
		a.addLocked(&writing[i])
	}
	return err
}

// addLostLocked makes a record of how many were lost.
func (a *Account) addLostLocked(now usage.Moment) {
	if a.lost == 0 {
		return
	}
	a.lostLines++
	a.pending.Add(&usage.Record{Kind: usage.KindLost, At: now.Date.UnixMilli(), Run: a.run, Part: a.lostLines, Lost: a.lost})
	a.lost = 0
}

// grown reports whether a file has become much larger than it needs to be.
func (a *Account) grown(ctx context.Context) bool {
	if a.acquireFiles(ctx) != nil {
		return false
	}
	defer a.releaseFiles()
	return a.store != nil && a.store.Grown()
}

// keep sums up and removes old days.
func (a *Account) keep(ctx context.Context) error {
	if err := a.acquireFiles(ctx); err != nil {
		return err
	}
	defer a.releaseFiles()
	if a.store == nil {
		return nil // The write has said why.
	}
	now := a.now()
	return a.store.Keep(now.Date, a.trust.believes(now))
}

// trust decides whether the system clock is believed. The zero value believes it.
type trust struct {
	date    time.Time     // the last one that was believed
	doubted time.Duration // since boot, since when the clock is far from that; 0: it is not
}

// believes reports whether the date is near the last one, or is what it is for long enough.
func (t *trust) believes(now usage.Moment) bool {
	if !t.date.IsZero() && now.Date.Sub(t.date) > farAhead {
		if t.doubted == 0 {
			t.doubted = max(1, now.Boot)
		}
		if now.Boot-t.doubted < trustAfter {
			return false
		}
	}
	t.doubted = 0
	if now.Date.After(t.date) {
		t.date = now.Date
	}
	return true
}

func (a *Account) reportResult(err error) {
	if err == nil {
		a.Conditions.Clear("account", "disk")
		return
	}
	a.reportTrouble(err)
}
