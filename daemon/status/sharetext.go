package status

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// measuredShare says what was measured of a lease on a time-sliced GPU.
func measuredShare(s *api.LeaseShare, slices *api.TimeSlices) string {
	out := ""
	if s != nil && s.Occupancy != nil {
		out += fmt.Sprintf("; occupancy %.0f%% of the last 10 s", *s.Occupancy)
	}
	if s != nil {
		out += ofShare(s)
		if text := s.StateText(); text != "" {
			out += "; its share: " + text
		}
	}
	if s != nil && s.Freezes != nil {
		out += "; " + s.Freezes.Text()
	}
	if slices != nil && slices.Note != "" && !strings.Contains(out, slices.Note) {
		out += "; " + slices.Note
	}
	return out
}

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

// shareAccuracy is how exact a share is, where it was measured to be met.
func shareAccuracy(s *api.LeaseShare) string {
	if s == nil || s.Within == nil {
		return ""
	}
	return fmt.Sprintf("within %.0f points over 10 s, as measured here (docs/quota.md)", *s.Within)
}
