package procfstest

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/boundedread"
)

const stopDeadline = 20 * time.Second

// AwaitStopped waits until all threads of a process are stopped: a signal to stop it takes effect after the call that sent it.
func AwaitStopped(tb testing.TB, pid int) {
	tb.Helper()
	limit := time.After(stopDeadline)
	poll := time.NewTicker(time.Millisecond) // Only its parent gets an event of it.
	defer poll.Stop()
	for !isStopped(tb, pid) {
		select {
		case <-poll.C:
		case <-limit:
			tb.Fatalf("process %d does not stop", pid)
		}
	}
}

func isStopped(tb testing.TB, pid int) bool {
	tb.Helper()
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "stat"))
	if err != nil || len(tasks) == 0 {
		tb.Fatalf("process %d has no threads: %v", pid, err)
	}
	return !slices.ContainsFunc(tasks, func(task string) bool {
		b, err := boundedread.Trusted(task, boundedread.Value)
		_, state, _ := strings.Cut(string(b), ") ")
		return err == nil && !strings.HasPrefix(state, "T")
	})
}
