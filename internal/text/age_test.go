package text

import (
	"testing"
	"time"
)

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                          "0s",
		0:                                     "0s",
		59*time.Second + 999*time.Millisecond: "59s",
		time.Minute:                           "1m",
		time.Hour - time.Second:               "59m",
		3*time.Hour + 5*time.Minute:           "3h05m",
		24*time.Hour - time.Second:            "23h59m",
		52*time.Hour + 30*time.Minute:         "2d4h",
	} {
		if got := Age(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
