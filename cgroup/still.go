package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// The kernel reports a cgroup as frozen when each of its threads is in the freezer's trap, which is on the way from the kernel to
// the program. A thread that waits in the kernel for something else is not in the trap, and one such thread, as one whose execve
// waits for a sibling that a tracer keeps in its exit, keeps the whole cgroup from "frozen". But from the write of cgroup.freeze on
// no thread returns to its program, and a thread that waits executes nothing. So a cgroup is frozen too if cgroup.freeze is set and no
// thread runs. Wait channels (/proc/PID/wchan) do not show it: the parent of a vfork waits elsewhere and counts as frozen.

// runningThread is a thread that is executed or waits for a processor.
type runningThread struct {
	tid  int
	name string
}

func (r *runningThread) String() string { return fmt.Sprintf("thread %d (%s)", r.tid, r.name) }

// firstRunning returns a thread of the cgroup or of one below it that runs; nil if there is none.
func (h Hierarchy) firstRunning(cg string) (*runningThread, error) {
	b, err := boundedread.Trusted(filepath.Join(h.Dir(cg), "cgroup.threads"), boundedread.IDs)
	if isRemoved(err) {
		return nil, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the threads of cgroup %s: %w", cg, err)
	}
	for line := range strings.Lines(string(b)) {
		tid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return nil, fmt.Errorf("cannot list the threads of cgroup %s: %w", cg, err)
		}
		s, err := procfs.Read(tid)
		if errors.Is(err, procfs.ErrNoProcess) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if s.State == 'R' {
			return &runningThread{tid, s.Name}, nil
		}
	}
	below, err := h.Children(cg)
	if err != nil {
		return nil, err
	}
	for _, child := range below {
		r, err := h.firstRunning(child)
		if r != nil || err != nil && !errors.Is(err, ErrNotFound) {
			return r, err
		}
	}
	return nil, nil
}

// userTimeWindow is the time over which the use of processors is measured; the kernel counts it in ticks of up to 10 ms.
const userTimeWindow = 30 * time.Millisecond

// stillness checks a cgroup whose cgroup.freeze was set a short time ago. A thread may run in the kernel for long, as one that
// maps much memory does, and it may wait for a processor in its program, where it executes nothing more. So the effect is measured:
// the programs use no processor.
type stillness struct {
	h     Hierarchy
	cg    string
	since time.Duration // of the measurement, since boot; 0: not begun
	user  time.Duration // used by the programs until then
	// userTime reads how much they have used; nil: as the kernel counts it.
	userTime func(cg string) (time.Duration, error)
	ran      bool // the last measurement showed that programs run
	unread   bool // the kernel does not say how much they use: only the states of the threads are known
}

// moves returns what runs; empty if nothing does.
func (s *stillness) moves() (string, error) {
	r, err := s.h.firstRunning(s.cg)
	if r == nil || err != nil {
		return "", err
	}
	text := r.String() + " runs"
	now := procfs.BootTime()
	if s.since != 0 && now-s.since < userTimeWindow {
		return text, nil
	}
	read := s.userTime
	if read == nil {
		read = s.h.userTime
	}
	user, err := read(s.cg)
	if s.unread = err != nil; s.unread {
		return text, nil
	}
	s.ran = s.since != 0 && user-s.user > (now-s.since)/5
	if s.since != 0 && !s.ran {
		if set, err := s.h.freezeIsSet(s.cg); set || err != nil {
			return "", err
		}
	}
	s.since, s.user = now, user
	return text, nil
}

// userTime is how long processors have executed programs of the cgroup, without the kernel's part.
func (h Hierarchy) userTime(cg string) (time.Duration, error) {
	b, err := boundedread.Trusted(filepath.Join(h.Dir(cg), "cpu.stat"), boundedread.Value)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "user_usec "); ok {
			us, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, ErrNotSupported
}

// freezeIsSet reads back whether cgroup.freeze is set.
func (h Hierarchy) freezeIsSet(cg string) (bool, error) {
	b, err := boundedread.Trusted(filepath.Join(h.Dir(cg), "cgroup.freeze"), boundedread.Value)
	if isRemoved(err) {
		return false, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	return strings.TrimSpace(string(b)) == "1", err
}
