package api

import "fmt"

// Text says how often a lease was frozen in the last minute, and how long its requests waited for that.
func (f *LeaseFreezes) Text() string {
	if f.Count == 0 {
		return "not frozen in the last minute"
	}
	times := "once"
	if f.Count > 1 {
		times = fmt.Sprintf("%d times", f.Count)
	}
	return fmt.Sprintf(
		"frozen %s in the last minute, for %s, at most %s at once: half of its requests wait %s for that, and one in a hundred %s or more",
		times, seconds(f.Seconds), seconds(f.LongestSeconds), seconds(f.WaitP50Seconds), seconds(f.WaitP99Seconds),
	)
}

// seconds is a duration with the unit that a reader expects.
func seconds(s float64) string {
	if s < 0.0995 {
		return fmt.Sprintf("%.0f ms", s*1000)
	}
	return fmt.Sprintf("%.1f s", s)
}
