package cgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// ThawWatchdog thaws scopes whose deadline has passed, and scopes that were frozen by a process that has exited, or that has
// not shown for a while that it runs. It is the whole of gpushare-thaw. It runs in a process of its own, so that a bug of the
// daemon cannot stop it.
type ThawWatchdog struct {
	RunDir  string // where Freezer writes its deadlines
	Freezer KernelFreezer
	Log     *slog.Logger
	Root    string // the directory that contains proc/; "/" when empty

	interval time.Duration // between two passes while a scope is frozen; passInterval when 0

	boot   string
	file   *deadlines
	thawed map[int]deadline // what was thawed and is still in the file: the process that froze it was stopped
	bad    map[int]bool     // slots whose error is already in the log
}

const (
	// passInterval is the time between two passes while a scope is frozen. A deadline that is written after a pass is seen at
	// the next one.
	passInterval = 250 * time.Millisecond
	// retryInterval is the time after which a thaw that failed is tried again.
	retryInterval = 100 * time.Millisecond
)

// Run takes the lock and thaws until ctx ends. Then it releases the lock, so that no daemon freezes any more, and thaws
// everything. It fails when another gpushare-thaw runs. While no scope is frozen it sleeps.
func (t *ThawWatchdog) Run(ctx context.Context) error {
	if t.Root == "" {
		t.Root = "/"
	}
	if t.interval == 0 {
		t.interval = passInterval
	}
	var err error
	if t.boot, err = procfs.BootID(t.Root); err != nil {
		return err
	}
	t.thawed, t.bad = map[int]deadline{}, map[int]bool{}
	if t.file, err = openDeadlines(t.RunDir); err != nil {
		return err
	}
	defer t.file.close()
	events, err := newThawEvents(ctx, t.file.name)
	if err != nil {
		return err
	}
	defer events.close()
	// The lock allows daemons to freeze, so it is taken after everything else works.
	name := filepath.Join(t.RunDir, lockFile)
	lock, err := takeLock(name)
	if err != nil {
		return fmt.Errorf("cannot lock %s: %w", name, err)
	}
	defer lock.Close()

	for ctx.Err() == nil {
		next, by, err := t.pass(ctx, "")
		if err != nil {
			return err
		}
		if err := writePass(lock, procfs.BootTime()); err != nil {
			return fmt.Errorf("cannot write %s: %w", name, err)
		}
		if next > 0 {
			events.ignore() // The next pass is soon.
		} else if !events.watching() {
			if err := events.watch(); err != nil {
				return err
			}
			continue // A write before the watch is no event.
		}
		if err := events.wait(next, by); err != nil {
			return err
		}
	}
	lock.Close()
	_, _, err = t.pass(context.WithoutCancel(ctx), "gpushare-thaw is stopping")
	return err
}

// pass thaws what is due, or everything for a reason. It returns the time until the next pass (0: when the file changes) and
// the process whose exit must start a pass earlier.
func (t *ThawWatchdog) pass(ctx context.Context, everything string) (next time.Duration, by Process, err error) {
	if t.file.replaced() {
		return 0, by, fmt.Errorf("cannot read the thaw deadlines: %s was removed or replaced", t.file.name)
	}
	var header deadline
	type found struct {
		slot int
		deadline
	}
	var due []found
	now := procfs.BootTime()
	alive := map[Process]bool{}
	lives := func(p Process) bool {
		if _, ok := alive[p]; !ok {
			alive[p] = procfs.Alive(p.PID, p.Start)
		}
		return alive[p]
	}
	still := map[int]deadline{} // those of thawed that are in the file
	_, err = t.file.read(func(slot int, v *slotView, err error) {
		switch {
		case err != nil:
			if !t.bad[slot] {
				t.bad[slot] = true
				t.Log.Warn("cannot read a thaw deadline: it is ignored", "slot", slot, "error", err)
			}
			return
		case slot == headerSlot:
			if header = v.deadline(); header.Until > now && header.Boot == t.boot && lives(header.By) {
				next, by = t.interval, header.By
			}
			return
		}
		delete(t.bad, slot)
		if was, ok := t.thawed[slot]; ok && v.is(&was) {
			still[slot] = was
			return
		}
		if everything != "" || t.reasonToThaw(v, &header, lives(v.by), now) != "" {
			due = append(due, found{slot, v.deadline()})
			return
		}
		next = earlier(next, t.left(v, &header, now))
	})
	if err != nil {
		return 0, by, err
	}
	t.thawed = still
	if len(due) == 0 {
		return next, by, nil
	}
	// The process may have shown that it runs while the file was read, and frozen then.
	if again, err := t.file.readSlot(headerSlot); err == nil {
		header = again
	}
	for i := range due {
		d := &due[i]
		v := slotView{until: d.Until, by: d.By, boot: []byte(d.Boot)}
		reason := t.reasonToThaw(&v, &header, lives(d.By), now)
		if reason == "" {
			reason = everything
		}
		if reason == "" {
			next = earlier(next, t.left(&v, &header, now))
		} else if !t.thaw(ctx, d.slot, d.deadline, lives(d.By), reason) {
			next = earlier(next, retryInterval)
		}
	}
	return next, by, nil
}

// left is the time until the next pass because of a slot that is not due.
func (t *ThawWatchdog) left(v *slotView, header *deadline, now time.Duration) time.Duration {
	left := v.until - now
	if v.by == header.By {
		left = min(left, header.Until-now)
	}
	return min(max(left, time.Millisecond), t.interval)
}

// reasonToThaw is why the cgroup must be thawed now; empty when it must not.
func (t *ThawWatchdog) reasonToThaw(v *slotView, header *deadline, alive bool, now time.Duration) string {
	switch {
	case string(v.boot) != t.boot:
		return "it was frozen before this boot"
	case !alive:
		return "the process that froze it has exited"
	case v.until <= now:
		return "its deadline has passed"
	case v.by == header.By && header.Until <= now:
		return "the process that froze it does not run"
	default:
		return ""
	}
}

// thaw thaws one cgroup. It frees the slot of a process that has exited; a process that lives owns its slots. False means to
// try again.
func (t *ThawWatchdog) thaw(ctx context.Context, slot int, d deadline, alive bool, reason string) bool {
	ctx, cancel := context.WithTimeout(ctx, thawTimeout)
	defer cancel()
	// What was read may be old by now: a thaw before this one takes up to a second.
	if again, err := t.file.readSlot(slot); err != nil || again != d {
		return false
	}
	err := t.Freezer.Thaw(ctx, d.Cgroup)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Log.Error("cannot thaw", "scope", d.ID, "cgroup", d.Cgroup, "reason", reason, "error", err)
		return false
	}
	t.Log.Info("thawed", "scope", d.ID, "cgroup", d.Cgroup, "reason", reason)
	if alive {
		t.thawed[slot] = d
		return true
	}
	if err := t.file.write(slot, &deadline{}); err != nil {
		t.Log.Error("cannot free a thaw deadline", "scope", d.ID, "error", err)
		return false
	}
	return true
}

func earlier(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
