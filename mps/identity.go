package mps

import (
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Started is when the control daemon started, to the second; zero if it does not run.
func (s *State) Started() time.Time {
	if s == nil || s.Start == 0 {
		return time.Time{}
	}
	age := procfs.BootTime() - time.Duration(s.Start)*time.Second/procfs.Ticks
	return time.Now().Add(-age).Round(time.Second)
}
