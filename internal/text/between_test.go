package text

import (
	"testing"
	"time"
)

func TestBetween(t *testing.T) {
	t.Parallel()
	winter, summer := time.FixedZone("CET", 3600), time.FixedZone("CEST", 7200)
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for want, c := range map[string][2]time.Time{
		"2026-03-01 00:00 to 2026-03-01 01:30 UTC":      {at, at.Add(90 * time.Minute)},
		"2026-03-01 01:00 CET to 2026-04-01 02:00 CEST": {at.In(winter), at.AddDate(0, 1, 0).In(summer)},
	} {
		if got := Between(c[0], c[1]); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
