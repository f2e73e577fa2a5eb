package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/procfs"
)

// Thawer thaws what was frozen for longer than its deadline allows, and what was frozen by a process that has died. It
// is the whole of gpushare-thaw: it runs in a process of its own, which nobody's bug but its own can stop.
type Thawer struct {
	RunDir  string // where Guard writes
	Freezer KernelFreezer
	Log     *slog.Logger
	Root    string // where proc/ is found; "/" when empty

	boot       string
	unreadable map[string]bool // files that were complained about already
}

const (
	// thawTimeout bounds one thaw: it takes microseconds, or a parent cgroup is frozen by somebody else.
	thawTimeout = time.Second
	// maxSleep bounds the sleep while something is frozen: the deadline's clock runs on while the host sleeps.
	maxSleep = time.Second
)

// Run holds the lock and thaws until ctx ends; then it lets go of the lock, so that nobody freezes any more, and thaws
// everything. It fails when another one runs already.
func (t *Thawer) Run(ctx context.Context) error {
	if t.Root == "" {
		t.Root = "/"
	}
	var err error
	if t.boot, err = procfs.BootID(t.Root); err != nil {
		return err
	}
	t.unreadable = map[string]bool{}
	dir := filepath.Join(t.RunDir, frozenDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make %s: %w", dir, err)
	}
	changes, stop, err := watch(dir)
	if err != nil {
		return err
	}
	defer stop()
	// Only a lock that comes with a working watch lets others freeze.
	name := filepath.Join(t.RunDir, lockFile)
	lock, err := takeLock(name)
	if err != nil {
		return fmt.Errorf("cannot lock %s: %w", name, err)
	}
	defer lock.Close()

	for {
		next, frozenBy, err := t.thawDue(ctx, dir, false)
		if err != nil {
			return err
		}
		if err := wait(ctx, next, frozenBy, changes); err != nil {
			if ctx.Err() == nil {
				return err
			}
			lock.Close()
			// The context is over, the work is not.
			_, _, err := t.thawDue(context.WithoutCancel(ctx), dir, true)
			return err
		}
	}
}

// thawDue thaws what is due, or everything, and tells when to look again (0: when something changes) and whose death must
// be noticed until then.
func (t *Thawer) thawDue(ctx context.Context, dir string, everything bool) (next time.Duration, frozenBy []Process, err error) {
	// Not kept open: the kernel tells of the removal of a directory only when nobody has it open.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot list the deadlines: %w", err)
	}
	defer root.Close()
	names, err := deadlineNames(root)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot list the deadlines: %w", err)
	}
	listed := make(map[string]bool, len(names))
	seen := map[Process]bool{}
	for _, name := range names {
		listed[name] = true
		d, err := readDeadline(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // thawed by its owner meanwhile
		}
		if err != nil {
			if !t.unreadable[name] {
				t.unreadable[name] = true
				t.Log.Warn("cannot read a frozen-until deadline, leaving it alone", "file", name, "error", err)
			}
			continue
		}
		delete(t.unreadable, name)
		reason := t.reasonToThaw(d)
		if reason == "" && everything {
			reason = "gpushare-thaw is stopping"
		}
		if reason != "" {
			if t.thaw(ctx, root, name, d, reason) {
				continue
			}
			next = earlier(next, maxSleep)
			continue
		}
		next = earlier(next, min(max(d.left(procfs.BootTime()), time.Millisecond), maxSleep))
		if !seen[d.By] {
			seen[d.By] = true
			frozenBy = append(frozenBy, d.By)
		}
	}
	for name := range t.unreadable {
		if !listed[name] {
			delete(t.unreadable, name)
		}
	}
	return next, frozenBy, nil
}

// reasonToThaw tells why the cgroup must be thawed now, empty when it need not.
func (t *Thawer) reasonToThaw(d deadline) string {
	switch {
	case d.Boot != t.boot:
		return "it was frozen before this boot"
	case !procfs.Alive(d.By.PID, d.By.Start):
		return "the process that froze it has died"
	case d.left(procfs.BootTime()) <= 0:
		return "its deadline passed"
	default:
		return ""
	}
}

// thaw thaws one and removes its file. False means to try again.
func (t *Thawer) thaw(ctx context.Context, root *os.Root, name string, d deadline, reason string) bool {
	ctx, cancel := context.WithTimeout(ctx, thawTimeout)
	defer cancel()
	err := t.Freezer.Thaw(ctx, d.Cgroup)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Log.Error("cannot thaw", "scope", scopeOfFile(name), "cgroup", d.Cgroup, "reason", reason, "error", err)
		return false
	}
	t.Log.Info("thawed", "scope", scopeOfFile(name), "cgroup", d.Cgroup, "reason", reason)
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Log.Error("cannot remove a frozen-until deadline", "file", name, "error", err)
		return false
	}
	return true
}

// wait returns nil when it is time to look again.
func wait(ctx context.Context, next time.Duration, frozenBy []Process, changes <-chan error) error {
	var timer <-chan time.Time
	if next > 0 {
		tm := time.NewTimer(next)
		defer tm.Stop()
		timer = tm.C
	}
	died, stop := watchDeaths(ctx, frozenBy)
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-changes:
		return err
	case <-timer:
		return nil
	case <-died:
		return nil
	}
}

// watchDeaths sends when one of the processes ends. stop ends the watch and returns when it has ended.
func watchDeaths(ctx context.Context, ps []Process) (died <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ch := make(chan struct{}, 1)
	notify := func() {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
	running := make(chan struct{}, len(ps))
	started := 0
	for _, p := range ps {
		pidfd, err := procfs.OpenPidfd(p.PID, p.Start)
		if errors.Is(err, procfs.ErrNoProcess) {
			notify()
			continue
		}
		if err != nil {
			continue // its deadline stands anyway
		}
		started++
		go func() {
			defer func() { running <- struct{}{} }()
			defer pidfd.Close()
			if pidfd.Wait(ctx) == nil {
				notify()
			}
		}()
	}
	return ch, func() {
		cancel()
		for range started {
			<-running
		}
	}
}

// watch tells when something changes in the directory; an error means that it can watch no more.
func watch(dir string) (<-chan error, func(), error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot watch %s: %w", dir, err)
	}
	const mask = unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		unix.Close(fd)
		return nil, nil, fmt.Errorf("cannot watch %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	changes := make(chan error, 1)
	quit, done := make(chan struct{}), make(chan struct{})
	send := func(err error) {
		select {
		case changes <- err:
		case <-quit:
		}
	}
	go func() {
		defer close(done)
		var buf [4096]byte
		for {
			_, err := f.Read(buf[:])
			if err != nil {
				send(fmt.Errorf("cannot watch %s: %w", dir, err))
				return
			}
			// What changed does not matter: everything is looked at. Only the directory's own end does.
			if _, err := os.Stat(dir); err != nil {
				send(fmt.Errorf("cannot watch %s: %w", dir, err))
				return
			}
			send(nil)
		}
	}()
	return changes, func() {
		close(quit)
		f.Close()
		<-done
	}, nil
}

func earlier(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
