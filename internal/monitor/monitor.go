// Package monitor lets the thread with which the Go runtime watches a program wake up less often. It knows nothing of what the program
// does.
package monitor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Slack is how much later than requested the kernel may end a sleep of the monitor thread.
//
// A program that mostly waits runs for some 100 µs at a time. Its first system call wakes the monitor thread, which then looks every
// 20 µs whether the call has ended, each time with an interrupt and two switches of threads, until the program waits again: with 64
// time-sliced leases that was a fifth of the daemon's CPU time. With this it looks once, and then finds that the program waits. A call
// that blocks is noticed that much later: others of the program that are ready wait for it. The unit of the daemon and slack.c of the
// worker have the same value.
const Slack = 500 * time.Microsecond

// mostThreads bounds the list of threads: a program that has begun has a dozen.
const mostThreads = 1024

// Relax sets the slack of the monitor thread. It is called when the program begins its work. It needs CAP_SYS_NICE, which the unit of
// the daemon does not give: there the unit sets the slack of all threads. The worker, which has C, sets it before its threads begin.
func Relax() error {
	if has, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil && time.Duration(has) >= Slack {
		return nil // All threads of the program have inherited it.
	}
	tid, err := thread()
	if err != nil {
		return err
	}
	// A thread has this file only under its own number (fs/proc/base.c).
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/timerslack_ns", tid), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(strconv.FormatInt(Slack.Nanoseconds(), 10))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot set the timer slack of the monitor thread: %w", err)
	}
	return nil
}

// thread finds the monitor thread: the runtime creates it first. Another one would only wake up later too.
func thread() (int, error) {
	list, _, err := boundedread.Entries("/proc/self/task", mostThreads)
	if err != nil {
		return 0, fmt.Errorf("cannot list the threads of this program: %w", err)
	}
	var tids []int
	for _, e := range list {
		if tid, err := strconv.Atoi(e.Name()); err == nil && tid != os.Getpid() {
			tids = append(tids, tid)
		}
	}
	if len(tids) == 0 {
		return 0, errors.New("cannot find the monitor thread: the program has one thread")
	}
	return slices.MinFunc(tids, func(a, b int) int { return cmp.Compare(after(a), after(b)) }), nil
}

// after is the place of a thread in the order of creation: the kernel counts up from the first one, and begins again at the end.
func after(tid int) uint32 { return uint32(tid - os.Getpid()) }
