package leases

import (
	"testing"
	"time"
)

func TestMaxTimeWarnings(t *testing.T) {
	const m = time.Minute
	for _, c := range []struct {
		name      string
		whole     time.Duration
		left      time.Duration
		due, next time.Duration
	}{
		{"long before", 24 * time.Hour, 3 * time.Hour, 0, 3*time.Hour - 10*m},
		{"ten minutes", 24 * time.Hour, 10 * m, 10 * m, 9 * m},
		{"between", 24 * time.Hour, 4 * m, 10 * m, 3 * m},
		{"one minute", 24 * time.Hour, m, m, m},
		{"the last moment", 24 * time.Hour, time.Second, m, time.Second},
		{"ten minutes are half of max_time", 20 * m, 20 * m, 0, 10 * m},
		{"ten minutes are more than half of max_time", 19 * m, 19 * m, 0, 18 * m},
		{"a short one", m, m, 0, 54 * time.Second},
		{"a tenth of a short one", m, 6 * time.Second, 6 * time.Second, 6 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			if due, next := warning(c.whole, c.left); due != c.due || next != c.next {
				t.Errorf("due %s, next %s; want %s and %s", due, next, c.due, c.next)
			}
		})
	}
}
