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

// ThawWatchdog thaws scopes whose deadline has passed and scopes that were frozen by a process that has exited. It is the whole
// of gpushare-thaw. It runs in a process of its own, so that a bug of the daemon cannot stop it.
type ThawWatchdog struct {
	RunDir  string // where Freezer writes its deadlines
	Freezer KernelFreezer
	Log     *slog.Logger
	Root    string // the directory that contains proc/; "/" when empty

	boot       string
	unreadable map[string]bool // files whose read error is already in the log
}

const (
	// thawTimeout bounds one thaw. A thaw needs microseconds, unless another program has frozen a parent cgroup.
	thawTimeout = time.Second
	// maxSleep bounds the sleep while a scope is frozen: the clock of the deadlines goes on while the host is suspended.
	maxSleep = time.Second
)

// Run takes the lock and thaws until ctx ends. Then it releases the lock, so that no daemon freezes any more, and thaws
// everything. It fails when another gpushare-thaw runs.
func (t *ThawWatchdog) Run(ctx context.Context) error {
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
		return fmt.Errorf("cannot create %s: %w", dir, err)
	}
	changes, stop, err := watch(dir)
	if err != nil {
		return err
	}
	defer stop()
	// The lock allows daemons to freeze, so it is taken after the watch works.
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
			// The last thaw must not end with the context.
			_, _, err := t.thawDue(context.WithoutCancel(ctx), dir, true)
			return err
		}
	}
}

// thawDue thaws what is due, or everything. It returns the time until the next pass (0: when a file changes) and the
// processes whose exit must start a pass earlier.
func (t *ThawWatchdog) thawDue(ctx context.Context, dir string, everything bool) (next time.Duration, frozenBy []Process, err error) {
	// The directory is not kept open: the kernel reports its removal only when no process has it open.
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
			continue // thawed by the daemon meanwhile
		}
		if err != nil {
			if !t.unreadable[name] {
				t.unreadable[name] = true
				t.Log.Warn("cannot read a thaw deadline; the file is ignored", "file", name, "error", err)
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

// reasonToThaw is why the cgroup must be thawed now; empty when it must not.
func (t *ThawWatchdog) reasonToThaw(d deadline) string {
	switch {
	case d.Boot != t.boot:
		return "it was frozen before this boot"
	case !procfs.Alive(d.By.PID, d.By.Start):
		return "the process that froze it has exited"
	case d.left(procfs.BootTime()) <= 0:
		return "its deadline has passed"
	default:
		return ""
	}
}

// thaw thaws one cgroup and removes its deadline file. False means to try again.
func (t *ThawWatchdog) thaw(ctx context.Context, root *os.Root, name string, d deadline, reason string) bool {
	ctx, cancel := context.WithTimeout(ctx, thawTimeout)
	defer cancel()
	err := t.Freezer.Thaw(ctx, d.Cgroup)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Log.Error("cannot thaw", "scope", scopeOfFile(name), "cgroup", d.Cgroup, "reason", reason, "error", err)
		return false
	}
	t.Log.Info("thawed", "scope", scopeOfFile(name), "cgroup", d.Cgroup, "reason", reason)
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Log.Error("cannot remove a thaw deadline", "file", name, "error", err)
		return false
	}
	return true
}

// wait returns nil when it is time for the next pass.
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

// watchDeaths sends when one of the processes exits. stop ends the watch and returns when its goroutines have ended.
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
			continue // its deadline applies anyway
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

// watch sends nil when a file in the directory changes, and an error when it can watch no more.
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
			// A pass reads all files, so it does not matter which one changed. Only the removal of the directory does.
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
