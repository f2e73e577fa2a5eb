package mps

import (
	"time"

	"github.com/gpushare/gpushare/internal/procfs"
)

// ticksPerSecond is the unit of start times in /proc/PID/stat, which is 100 on all architectures that Go supports (USER_HZ).
const ticksPerSecond = 100

// Started is when the control daemon started, to the second; zero if it does not run.
func (s *State) Started() time.Time {
	if s == nil || s.Start == 0 {
		return time.Time{}
	}
	age := procfs.BootTime() - time.Duration(s.Start)*time.Second/ticksPerSecond
	return time.Now().Add(-age).Round(time.Second)
}
