package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// appearEvents are what may bring the next directory of a path, or a process into the last one: the population of a cgroup changes its
// cgroup.events.
const appearEvents = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_DELETE_SELF

// WaitPopulated blocks until there is such a cgroup and it, or one below it, contains a process. An event is a hint, as in
// cgroupWatcher: without one the cgroup is read again after pollInterval, also where no inotify descriptor is left.
func (h Hierarchy) WaitPopulated(ctx context.Context, cg string) error {
	return h.WaitAnyPopulated(ctx, []string{cg})
}

// WaitAnyPopulated is WaitPopulated of several cgroups: it waits for the first of them that has a process.
func (h Hierarchy) WaitAnyPopulated(ctx context.Context, cgs []string) error {
	events := newAppearance(ctx)
	defer events.close()
	for {
		for _, cg := range cgs {
			events.watch(h, cg)
			busy, err := h.Populated(cg)
			if busy {
				return nil
			}
			if err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
		}
		if err := events.wait(ctx); err != nil {
			return fmt.Errorf("cannot wait for cgroup %s: %w", strings.Join(cgs, ", "), err)
		}
	}
}

// appearance is the inotify descriptor of one wait. Its watches are on what of the path is there.
type appearance struct {
	f    *os.File // nil: there is none, and only time decides
	stop func() bool
	buf  [4096]byte
}

// mostAppearances is how many waits have a descriptor at once: a user has 128 instances of inotify (fs.inotify.max_user_instances), and
// root's are for all its programs. Further waits look after pollInterval.
const mostAppearances = 16

// appearances has a value for each wait with a descriptor.
var appearances = make(chan struct{}, mostAppearances)

func newAppearance(ctx context.Context) *appearance {
	none := &appearance{stop: func() bool { return true }}
	select {
	case appearances <- struct{}{}:
	default:
		return none
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		<-appearances
		return none
	}
	f := os.NewFile(uintptr(fd), "inotify")
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) }) // A read that waits returns.
	return &appearance{f: f, stop: stop}
}

func (a *appearance) close() {
	a.stop()
	if a.f != nil {
		_ = a.f.Close()
		a.f = nil
		<-appearances
	}
}

// watch watches the cgroup and its parents up to the first that is there. The caller reads the cgroup afterwards: what came before the
// watch has no event.
func (a *appearance) watch(h Hierarchy, cg string) {
	if a.f == nil {
		return
	}
	raw, err := a.f.SyscallConn()
	if err != nil {
		return
	}
	add := func(file string) (err error) {
		if e := raw.Control(func(fd uintptr) { _, err = unix.InotifyAddWatch(int(fd), file, appearEvents) }); e != nil {
			return e
		}
		return err
	}
	if add(h.Dir(path.Join(cg, "cgroup.events"))) == nil {
		return
	}
	for at := path.Dir(cg); ; at = path.Dir(at) {
		if add(h.Dir(at)) == nil || at == "/" || at == "." {
			return
		}
	}
}

// wait returns after an event, or after pollInterval.
func (a *appearance) wait(ctx context.Context) error {
	if a.f == nil {
		timer := time.NewTimer(pollInterval)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	_ = a.f.SetReadDeadline(time.Now().Add(pollInterval))
	if err := ctx.Err(); err != nil {
		return err // It may have ended before the deadline was set.
	}
	_, err := a.f.Read(a.buf[:])
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		a.close()
	}
	return ctx.Err()
}
