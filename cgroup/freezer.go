package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpushare/gpushare/internal/faultpoint"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// LeafFreezer is a ScopeFreezer that reports which cgroup it freezes. Every Port is one.
type LeafFreezer interface {
	ScopeFreezer
	Leaf(id string) (cg string, err error)
}

// FreezeReason is why a scope is frozen.
type FreezeReason int

// The reasons to freeze a scope.
const (
	ForTimeSlice     FreezeReason = iota // another lease has the GPU's time
	ForGPUMemory                         // its grant uses too much GPU memory
	ForAdministrator                     // an administrator froze its tenant
	ForTemperature                       // its GPU is hot
	ForStop                              // it is killed when its queued GPU work is done
	freezeReasons
)

func (r FreezeReason) String() string {
	return [freezeReasons]string{"time slices", "GPU memory", "an administrator", "the temperature of its GPU", "its end"}[r]
}

// Errors of Freeze.
var (
	ErrStopping      = errors.New("it is being stopped")
	ErrFreezerClosed = errors.New("the daemon is stopping")
)

const (
	// Forever is a duration for Freeze: until Thaw, or until the daemon does not run.
	Forever time.Duration = math.MaxInt64

	// aliveTimeout is how long all scopes stay frozen without a sign of the process that froze them. Together with keepInterval
	// and passInterval it keeps the promise that no scope stays frozen for 2 s after a process was killed, stopped or hung.
	aliveTimeout = 800 * time.Millisecond
	// keepInterval is the time between two such signs, and between two checks of gpushare-thaw.
	keepInterval = 200 * time.Millisecond
	// passTimeout is the age of gpushare-thaw's last pass after which it does not count as running.
	passTimeout = 800 * time.Millisecond
	// answerTimeout is how long gpushare-thaw, which sleeps while no scope is frozen, may take to wake up.
	answerTimeout = 400 * time.Millisecond
)

// FreezerOptions are for NewFreezer.
type FreezerOptions struct {
	RunDir string // for the deadlines; gpushare-thaw must use the same
	Root   string // the directory that contains proc/; "/" when empty
}

// Freezer freezes scopes, each for a set of reasons: a scope is frozen while one reason has not passed, so that one part of
// the daemon does not undo the freeze of another. No scope stays frozen without the daemon: before each freeze a thaw deadline
// is written to a file, and gpushare-thaw thaws a scope when its deadline has passed, when the process that froze it has
// exited, and when that process has not shown for aliveTimeout that it runs. Freezer freezes only while gpushare-thaw
// answers, and thaws everything when it stops to answer. Run must run.
type Freezer struct {
	freezer LeafFreezer
	file    *deadlines
	lock    lockReader
	boot    string
	self    Process
	wake    chan struct{}
	// passed is called after each pass, and reports whether there must be another one although no scope is frozen; nil: nothing is
	// called. It is set before Run.
	passed func(context.Context) (active bool, err error)

	mu     sync.Mutex // guards the fields below; taken after a scope's
	scopes map[string]*freezableScope
	free   []int         // slots
	slots  int           // of the file
	alive  time.Duration // the time that is in the header
	lapses int           // how often that time had passed when it was written again
	state  lockState     // of gpushare-thaw, as last read
	readAt time.Duration // when
	awake  bool          // Run makes passes, or was woken to
	closed bool
}

// freezableScope is a scope that was frozen since it exists.
type freezableScope struct {
	id string

	mu       sync.Mutex // guards the fields below; held during a freeze and a thaw
	until    [freezeReasons]time.Duration
	slot     int // 0: none yet
	written  deadline
	frozen   bool // it was frozen, and not thawed since by this process
	lapses   int  // Freezer.lapses when it was frozen: when that has changed, gpushare-thaw may have thawed it
	stopping bool // only ForStop may freeze it
	removed  bool // it is no longer in Freezer.scopes
}

// NewFreezer returns a Freezer that freezes with freezer.
func NewFreezer(freezer LeafFreezer, opt FreezerOptions) (*Freezer, error) {
	if opt.Root == "" {
		opt.Root = "/"
	}
	boot, err := procfs.BootID(opt.Root)
	if err != nil {
		return nil, err
	}
	self, err := thisProcess()
	if err != nil {
		return nil, err
	}
	file, err := openDeadlines(opt.RunDir)
	if err != nil {
		return nil, err
	}
	if err := file.mapSlots(); err != nil {
		return nil, errors.Join(err, file.close())
	}
	// Slots of a previous process are left to gpushare-thaw, which frees them when it has thawed their scopes.
	used := map[int]bool{headerSlot: true}
	slots, err := file.read(func(slot int, _ *slotView, _ error) { used[slot] = true })
	if err != nil {
		return nil, errors.Join(err, file.close())
	}
	f := &Freezer{
		freezer: freezer, file: file, lock: lockReader{name: filepath.Join(opt.RunDir, lockFile)}, boot: boot, self: self,
		wake: make(chan struct{}, 1), scopes: map[string]*freezableScope{}, slots: max(slots, headerSlot+1),
	}
	for slot := slots - 1; slot > headerSlot; slot-- {
		if !used[slot] {
			f.free = append(f.free, slot)
		}
	}
	return f, nil
}

// Close closes the files. Nothing may be frozen any more.
func (f *Freezer) Close() error {
	f.lock.close()
	return f.file.close()
}

// Freeze stops the scope's processes for a reason, until Thaw for that reason, and for at most d from now. For a scope that
// is frozen it sets the time of the reason, and writes at most its deadline. After an error the scope is not frozen for this
// reason. ErrNoThawWatchdog when gpushare-thaw does not answer, ErrStopping after Stopping.
func (f *Freezer) Freeze(ctx context.Context, id string, reason FreezeReason, d time.Duration) error {
	s := f.locked(id, true)
	defer s.mu.Unlock()
	if s.stopping && reason != ForStop {
		return fmt.Errorf("cannot freeze %s: %w", id, ErrStopping)
	}
	now := procfs.BootTime()
	before := s.until[reason]
	s.until[reason] = now + min(d, Forever-now)
	err := f.ensure(ctx, s, now)
	if err == nil {
		return nil
	}
	if s.until[reason] = before; s.lapsed(now) {
		s.until[reason] = 0
		return errors.Join(err, f.release(context.WithoutCancel(ctx), s))
	}
	return err
}

// Thaw ends the reason, and continues the scope's processes when no other reason is left. It is idempotent.
func (f *Freezer) Thaw(ctx context.Context, id string, reason FreezeReason) error {
	s := f.locked(id, false)
	if s == nil {
		return nil
	}
	defer s.mu.Unlock()
	s.until[reason] = 0
	if s.lapsed(procfs.BootTime()) {
		return f.release(ctx, s)
	}
	return f.write(s)
}

// Stopping thaws a scope whose processes are about to be stopped, so that SIGTERM reaches them. From then on only ForStop
// freezes it.
func (f *Freezer) Stopping(ctx context.Context, id string) error {
	s := f.locked(id, true)
	defer s.mu.Unlock()
	s.until, s.stopping = [freezeReasons]time.Duration{}, true
	return f.release(ctx, s)
}

// Retain thaws and forgets all scopes that are not in the list.
func (f *Freezer) Retain(ctx context.Context, ids map[string]bool) error {
	return f.retain(ctx, func(id string) bool { return ids[id] })
}

func (f *Freezer) retain(ctx context.Context, keep func(id string) bool) error {
	var errs []error
	for _, s := range f.all() {
		if keep(s.id) {
			continue
		}
		s.mu.Lock()
		err := f.remove(ctx, s)
		s.mu.Unlock()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// forget thaws one scope, if this process has frozen it, and forgets it. A missing one is no error.
func (f *Freezer) forget(ctx context.Context, id string) error {
	s := f.locked(id, false)
	if s == nil {
		return nil
	}
	defer s.mu.Unlock()
	if s.frozen {
		return f.remove(ctx, s)
	}
	f.drop(s)
	return nil
}

// remove thaws a scope and forgets it. The scope's lock is held.
func (f *Freezer) remove(ctx context.Context, s *freezableScope) error {
	s.until = [freezeReasons]time.Duration{}
	if err := f.release(ctx, s); err != nil {
		return err
	}
	f.drop(s)
	return nil
}

// drop forgets a scope that is not frozen. The scope's lock is held.
func (f *Freezer) drop(s *freezableScope) {
	if s.removed {
		return
	}
	s.removed = true
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.scopes, s.id)
	if s.slot != 0 {
		f.free = append(f.free, s.slot)
	}
}

// Reasons returns why the scope is frozen now; none when it is not.
func (f *Freezer) Reasons(id string) []FreezeReason {
	s := f.locked(id, false)
	if s == nil {
		return nil
	}
	defer s.mu.Unlock()
	var out []FreezeReason
	now := procfs.BootTime()
	for r, until := range s.until {
		if until > now {
			out = append(out, FreezeReason(r))
		}
	}
	return out
}

// Frozen reads back whether the scope's processes are stopped.
func (f *Freezer) Frozen(id string) (bool, error) { return f.freezer.Frozen(id) }

// locked returns the scope with its lock held; nil when it is unknown and make is false.
func (f *Freezer) locked(id string, create bool) *freezableScope {
	for {
		f.mu.Lock()
		s := f.scopes[id]
		if s == nil && create {
			s = &freezableScope{id: id}
			f.scopes[id] = s
		}
		f.mu.Unlock()
		if s == nil {
			return nil
		}
		s.mu.Lock()
		if !s.removed {
			return s
		}
		s.mu.Unlock()
	}
}

func (f *Freezer) all() []*freezableScope {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*freezableScope, 0, len(f.scopes))
	for _, s := range f.scopes {
		out = append(out, s)
	}
	return out
}

// longest is the time at which the last reason passes.
func (s *freezableScope) longest() time.Duration {
	var last time.Duration
	for _, until := range s.until {
		last = max(last, until)
	}
	return last
}

// lapsed reports whether no reason is left.
func (s *freezableScope) lapsed(now time.Duration) bool { return s.longest() <= now }

// ensure freezes the scope, or writes its later deadline when it is frozen. The scope's lock is held.
func (f *Freezer) ensure(ctx context.Context, s *freezableScope, now time.Duration) error {
	f.mu.Lock()
	trusted, closed := now < f.alive && s.lapses == f.lapses, f.closed
	f.mu.Unlock()
	// After a deadline that has passed the scope may be thawed.
	if s.frozen && trusted && now < s.written.Until {
		return f.write(s)
	}
	if closed {
		return fmt.Errorf("cannot freeze %s: %w", s.id, ErrFreezerClosed)
	}
	cg, err := f.freezer.Leaf(s.id)
	if err != nil {
		return err
	}
	if err := f.Ready(); err != nil {
		return fmt.Errorf("cannot freeze %s: %w", s.id, err)
	}
	s.frozen = true // from here on it has to be thawed, and its deadline kept
	s.written.Cgroup = cg
	if err := f.write(s); err != nil {
		return fmt.Errorf("cannot freeze %s: %w", s.id, err)
	}
	return f.freeze(ctx, s)
}

// freeze freezes a scope whose deadline is written. The scope's lock is held.
func (f *Freezer) freeze(ctx context.Context, s *freezableScope) error {
	f.mu.Lock()
	s.lapses = f.lapses
	f.mu.Unlock()
	faultpoint.Hit("freezer.before-freeze")
	err := f.freezer.Freeze(ctx, s.id)
	faultpoint.Hit("freezer.after-freeze")
	return err
}

// release thaws the scope, and then frees its deadline. After an error Run tries again. The scope's lock is held.
func (f *Freezer) release(ctx context.Context, s *freezableScope) error {
	if s.frozen {
		faultpoint.Hit("freezer.before-thaw")
	}
	if err := f.freezer.Thaw(ctx, s.id); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNotSupported) {
		return err
	}
	if s.frozen {
		faultpoint.Hit("freezer.after-thaw")
	}
	s.frozen = false
	return f.write(s)
}

// write writes the scope's deadline if it differs from that in the file. The scope's lock is held.
func (f *Freezer) write(s *freezableScope) error {
	d := deadline{By: f.self, Boot: f.boot, Cgroup: s.written.Cgroup, ID: s.id}
	if s.frozen {
		d.Until = wholeMilliseconds(s.longest())
	}
	if d == s.written || d.Until == 0 && s.written.Until == 0 {
		return nil
	}
	if s.slot == 0 {
		s.slot = f.takeSlot()
	}
	// The sign of life first: gpushare-thaw thaws a scope whose deadline it sees without one.
	if err := f.showAlive(); err != nil {
		return err
	}
	var err error
	if s.written.Until = d.Until; d == s.written {
		err = f.file.move(s.slot, &d)
	} else {
		err = f.file.write(s.slot, &d)
	}
	if err != nil {
		s.written.By = Process{} // It is not known what the slot has.
		return err
	}
	s.written = d
	f.wakeUp()
	return nil
}

func (f *Freezer) takeSlot() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.free); n > 0 {
		slot := f.free[n-1]
		f.free = f.free[:n-1]
		return slot
	}
	f.slots++
	return f.slots - 1
}
