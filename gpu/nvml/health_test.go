//go:build cgo

package nvml

import (
	"testing"
	"time"
)

// The counters of the links are read each minute, and at once after the GPU was partitioned or reset.
func TestLinkErrorsAreReadEachMinute(t *testing.T) {
	now := time.Now()
	v := device{}
	for _, c := range []struct {
		name  string
		after time.Duration
		want  bool
	}{
		{"before the first reading", 0, false},
		{"after ten seconds", 10 * time.Second, true},
		{"just before a minute", time.Minute - 1, true},
		{"after a minute", time.Minute, false},
	} {
		if got := v.linkErrors.known(now.Add(c.after)); got != c.want {
			t.Errorf("%s: known is %v", c.name, got)
		}
		if c.after == 0 {
			v.linkErrors.readAt = now
		}
	}
	v.invalidate()
	if v.linkErrors.known(now) {
		t.Error("they are known after the GPU was partitioned")
	}
}
