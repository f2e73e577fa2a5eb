package procfstest

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Waited is how long the threads of a process have been ready to run and had no processor, as far as the kernel counts it: what was late
// in a test because of other programs. It is less than it was when a thread has ended, and does not count a time in which the process was
// stopped.
func Waited(pid int) (total time.Duration) {
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
	if err != nil {
		return 0
	}
	for _, name := range tasks {
		b, err := boundedread.Trusted(name, boundedread.Value)
		if err != nil {
			continue // The thread has ended.
		}
		var ran, waited int64 // nanoseconds (Documentation/scheduler/sched-stats.rst)
		if _, err := fmt.Sscan(string(b), &ran, &waited); err == nil {
			total += time.Duration(waited)
		}
	}
	return total
}
