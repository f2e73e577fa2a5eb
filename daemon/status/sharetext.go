package status

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// ofShare says whether a lease uses more or less than its share, if that is certain: by two standard errors of what was measured.
func ofShare(s *api.LeaseShare) string {
	if s.Busy == nil || s.StdErr == nil || s.Due == nil {
		return ""
	}
	how := "about"
	switch {
	case *s.Busy+2**s.StdErr < *s.Due:
		how = "less than"
	case *s.Busy-2**s.StdErr > *s.Due:
		how = "more than"
	}
	return fmt.Sprintf("; it uses %s its share (%.0f±%.0f%%, due %.0f%%)", how, *s.Busy, *s.StdErr, *s.Due)
}

// freezesText says how often a lease was frozen in the last minute, and how long a request waited for that.
func freezesText(f *api.LeaseFreezes) string {
	switch {
	case f == nil:
		return ""
	case f.Count == 0:
		return "; not frozen in the last minute"
	}
	return fmt.Sprintf(
		"; frozen %s in the last minute, for %.1f s: a request waits for up to %.1f s",
		text.Count(f.Count, "time"),
		f.Seconds,
		f.LongestSeconds,
	)
}
