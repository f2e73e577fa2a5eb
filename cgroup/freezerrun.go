package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
)

// Ready returns nil when gpushare-thaw runs and answers, and ErrNoThawWatchdog when it does not. While scopes are frozen it
// makes a pass often, and the last one is proof enough. Otherwise it sleeps, and is woken by a write to its file.
func (f *Freezer) Ready() error {
	now := procfs.BootTime()
	f.mu.Lock()
	state, readAt := f.state, f.readAt
	f.mu.Unlock()
	if now-readAt < 2*keepInterval && state.recent(now) {
		return nil
	}
	state, err := f.readState()
	if err != nil || state.recent(now) {
		return err
	}
	if !state.held {
		return ErrNoThawWatchdog
	}
	if err := f.writeAlive(now); err != nil {
		return err
	}
	for procfs.BootTime() < now+answerTimeout {
		pause(time.Millisecond)
		if state, err = f.readState(); err != nil || state.held && state.pass >= now {
			return err
		}
	}
	return fmt.Errorf("%w: it has its lock and does not answer", ErrNoThawWatchdog)
}

// readState reads the state of gpushare-thaw.
func (f *Freezer) readState() (lockState, error) {
	state, err := f.lock.read()
	if err == nil && state.held && !f.file.present() {
		state, err = lockState{}, errDeadlinesRemoved
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.readAt = state, procfs.BootTime()
	return state, err
}

// showAlive writes the sign of life if the last one is old.
func (f *Freezer) showAlive() error {
	now := procfs.BootTime()
	f.mu.Lock()
	alive := f.alive
	f.mu.Unlock()
	if alive-now > aliveTimeout-keepInterval/2 {
		return nil
	}
	return f.writeAlive(now)
}

func (f *Freezer) writeAlive(now time.Duration) error {
	if err := f.file.write(headerSlot, &deadline{Until: now + aliveTimeout, By: f.self, Boot: f.boot}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now >= f.alive {
		f.lapses++
	}
	f.alive = max(f.alive, now+aliveTimeout)
	return nil
}

// wakeUp wakes Run if it waits for the first freeze: while scopes are frozen it has a timer, and each wake-up would cost more than
// the freeze.
func (f *Freezer) wakeUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.awake {
		return
	}
	f.awake = true
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Freezer) setAwake(awake bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awake = awake
}

// thawTimeout bounds one thaw. A thaw needs microseconds, unless another program has frozen a parent cgroup.
const thawTimeout = time.Second

// Run shows that this process runs while scopes are frozen, thaws those whose time has passed, freezes those again that
// another program has thawed, and thaws all when gpushare-thaw does not answer. When ctx ends it thaws all, and Freeze fails
// from then on. It logs nothing: report is called with each error and with each scope that was thawed against its reasons.
func (f *Freezer) Run(ctx context.Context, report func(error)) {
	timer := loop.NewTimer(keepInterval)
	defer timer.Stop()
	next, active := procfs.BootTime()+keepInterval, false
	for {
		var due <-chan time.Time
		if active {
			timer.Reset(max(next-procfs.BootTime(), 0))
			due = timer.C()
		}
		select {
		case <-ctx.Done():
			f.close(context.WithoutCancel(ctx), report)
			return
		case <-f.wake:
			if active {
				continue // The timer runs.
			}
			// The first freeze has written the sign of life.
			next, active = procfs.BootTime()+keepInterval, true
		case <-due:
			next = procfs.BootTime() + keepInterval
			f.setAwake(false) // A freeze that this pass does not see wakes Run again.
			if active = f.keep(ctx, report); active {
				f.setAwake(true)
			}
		}
	}
}

// close thaws all scopes, and lets none be frozen any more.
func (f *Freezer) close(ctx context.Context, report func(error)) {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, thawTimeout)
	defer cancel()
	f.thawAll(ctx, report)
}

func (f *Freezer) thawAll(ctx context.Context, report func(error)) {
	for _, s := range f.all() {
		s.mu.Lock()
		s.until = [freezeReasons]time.Duration{}
		if s.frozen {
			if err := f.release(ctx, s); err != nil {
				report(fmt.Errorf("cannot thaw %s: %w", s.id, err))
			}
		}
		s.mu.Unlock()
	}
}

// keep is one pass of Run. It reports whether a scope is frozen, or passed needs another pass.
func (f *Freezer) keep(ctx context.Context, report func(error)) (active bool) {
	ctx, cancel := context.WithTimeout(ctx, thawTimeout)
	defer cancel()
	now := procfs.BootTime()
	scopes := f.all()
	if state, err := f.readState(); anyFrozen(scopes) && (err != nil || !state.recent(now)) {
		report(fmt.Errorf("all leases are thawed: %w", errors.Join(ErrNoThawWatchdog, err)))
		f.thawAll(ctx, report)
		return false
	}
	defer func() {
		if f.passed == nil {
			return
		}
		again, err := f.passed(ctx)
		if err != nil {
			report(err)
		}
		active = active || again
	}()
	if !anyFrozen(scopes) {
		return false
	}
	if err := f.writeAlive(now); err != nil {
		report(err)
	}
	for _, s := range scopes {
		if !s.mu.TryLock() {
			active = true // It is being frozen or thawed; the next pass sees it.
			continue
		}
		if err := f.keepScope(ctx, s, now); err != nil {
			report(err)
		}
		active = active || s.frozen
		s.mu.Unlock()
	}
	return active
}

// keepScope makes the state of one scope what its reasons say. The scope's lock is held.
func (f *Freezer) keepScope(ctx context.Context, s *freezableScope, now time.Duration) error {
	if !s.frozen {
		return nil
	}
	if s.lapsed(now) {
		s.until = [freezeReasons]time.Duration{}
		if err := f.release(ctx, s); err != nil {
			return fmt.Errorf("cannot thaw %s: %w", s.id, err)
		}
		return nil
	}
	f.mu.Lock()
	frozen := s.lapses == f.lapses
	f.mu.Unlock()
	if frozen && (s.until[ForAdministrator] > now || s.until[ForGPUMemory] > now || s.until[ForTemperature] > now) {
		var err error
		if frozen, err = f.freezer.Frozen(s.id); errors.Is(err, ErrNotFound) {
			s.until = [freezeReasons]time.Duration{}
			return f.release(ctx, s)
		}
	}
	if frozen {
		return nil
	}
	if err := f.freeze(ctx, s); err != nil {
		s.until = [freezeReasons]time.Duration{}
		return errors.Join(fmt.Errorf("cannot freeze %s again: %w", s.id, err), f.release(context.WithoutCancel(ctx), s))
	}
	return nil
}

// anyFrozen reports whether a scope is frozen, or is being frozen.
func anyFrozen(scopes []*freezableScope) bool {
	for _, s := range scopes {
		if !s.mu.TryLock() {
			return true
		}
		frozen := s.frozen
		s.mu.Unlock()
		if frozen {
			return true
		}
	}
	return false
}

// thisProcess identifies the own process.
func thisProcess() (Process, error) {
	pid := os.Getpid()
	start, err := procfs.Start(pid)
	if err != nil {
		return Process{}, fmt.Errorf("cannot read this process's start time: %w", err)
	}
	return Process{PID: pid, Start: start}, nil
}
