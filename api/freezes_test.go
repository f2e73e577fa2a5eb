package api

import "testing"

func TestFreezesText(t *testing.T) {
	for _, c := range []struct {
		freezes LeaseFreezes
		want    string
	}{
		{LeaseFreezes{}, "not frozen in the last minute"},
		{
			LeaseFreezes{Count: 1, Seconds: 0.25, LongestSeconds: 0.25},
			"frozen once in the last minute, for 0.2 s, at most 0.2 s at once: half of its requests wait 0 ms for that, and one in a hundred 0 ms or more",
		},
		{
			LeaseFreezes{Count: 58, Seconds: 41.26, LongestSeconds: 0.84, WaitP50Seconds: 0.31, WaitP99Seconds: 0.0991},
			"frozen 58 times in the last minute, for 41.3 s, at most 0.8 s at once: half of its requests wait 0.3 s for that, and one in a hundred 99 ms or more",
		},
	} {
		if got := c.freezes.Text(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
