package quota

import (
	"strings"
	"testing"
	"time"
)

// of is a window in which a lease used a part of what was due, in percent, with a standard error.
func of(known time.Duration, used, due, off float64) Window {
	return Window{Known: known, Used: used / 100, Due: due / 100, Error: off / 100}
}

// TestDecide checks what is said of a share.
func TestDecide(t *testing.T) {
	const ten, sixty = 10 * time.Second, time.Minute
	for name, c := range map[string]struct {
		e      Evidence
		want   State
		due    float64 // percent
		reason string
	}{
		"it has its share": {e: Evidence{Short: of(ten, 30, 30, 5), Exact: 0.02}, want: Met, due: 30},
		"a window that may lack it by the error of the samples": {
			e: Evidence{Short: of(ten, 23, 30, 5), Exact: 0.02}, want: Met, due: 30,
		},
		"a window that lacks it": {
			e:      Evidence{Short: of(ten, 11, 55, 5), Exact: 0.02, Saturated: true, Usual: "others have many processes"},
			want:   Unmet,
			due:    55,
			reason: "many processes",
		},
		"a minute that lacks it, while the window may": {
			e: Evidence{
				Short: of(ten, 42, 50, 5), Long: of(sixty, 40, 50, 2), Exact: 0.02, NeedKnown: true, NeedLow: 0.6, NeedTop: 0.6,
			},
			want: Unmet, due: 50,
		},
		"it uses less, as it does alone": {
			e:    Evidence{Short: of(ten, 9, 30, 3), Exact: 0.02, NeedKnown: true, NeedLow: 0.08, NeedTop: 0.1},
			want: Less, due: 10, reason: "alone it would use about 10%",
		},
		"it uses less, and what it would use is not known": {
			e: Evidence{Short: of(ten, 9, 30, 3), Exact: 0.02}, want: Unmeasured, reason: "was not measured",
		},
		"it uses less, and what it would use is not known well": {
			e:    Evidence{Short: of(ten, 9, 30, 3), Exact: 0.02, NeedKnown: true, NeedLow: 0.05, NeedTop: 0.4},
			want: Unmeasured, reason: "between 5 and 40%",
		},
		"what its slices were charged is more exact than the samples": {
			e: Evidence{Short: of(ten, 25, 30, 5), Charged: of(ten, 22, 30, 4), Exact: 0.02, Saturated: true}, want: Unmet, due: 30,
		},
		"what its slices were charged was not used": {
			e: Evidence{Short: of(ten, 10, 30, 5), Charged: of(ten, 30, 30, 4), Exact: 0.02, Saturated: true}, want: Unmet, due: 30,
		},
		"no observations":                       {e: Evidence{}, want: Unmeasured, reason: "less than ten seconds"},
		"a few observations":                    {e: Evidence{Short: of(5*time.Second, 30, 30, 5)}, want: Unmeasured, reason: "less than ten"},
		"observations of another time":          {e: Evidence{Short: of(ten, 30, 30, 5), Missing: "the driver is silent"}, want: Unmeasured, reason: "silent"},
		"no part of the time":                   {e: Evidence{Short: of(ten, 30, 0, 5)}, want: Unmeasured, reason: "no part"},
		"few samples, and it seems to be met":   {e: Evidence{Short: of(ten, 30, 30, 15), Inexact: "few samples"}, want: Unmeasured, reason: "few"},
		"few samples, and it seems to be idle":  {e: Evidence{Short: of(ten, 0, 30, 15), Idle: true, Inexact: "few samples"}, want: Unmeasured, reason: "few"},
		"few samples, and it is certainly less": {e: Evidence{Short: of(ten, 10, 55, 15), Inexact: "few", Obstacle: "side by side"}, want: Unmet, due: 55, reason: "side by side"},
		"no work":                               {e: Evidence{Short: of(ten, 0, 30, 2), Idle: true}, want: Less, reason: "does nothing"},
		"no other lease":                        {e: Evidence{Short: of(ten, 40, 100, 5), Alone: true, Inexact: "few"}, want: Less, due: 40},
	} {
		t.Run(name, func(t *testing.T) {
			v := Decide(&c.e)
			if v.State != c.want || !strings.Contains(v.Reason, c.reason) {
				t.Errorf("%+v, want %s, %q", v, c.want, c.reason)
			}
			if c.due != 0 && (v.Due < c.due/100-1e-9 || v.Due > c.due/100+1e-9) {
				t.Errorf("due %.1f %%, want %.1f", 100*v.Due, c.due)
			}
		})
	}
}
