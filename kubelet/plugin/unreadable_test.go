package plugin

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// A GPU counts as failing after 30 s in which each reading found it unreadable, and from the first reading that finds it otherwise no more.
func TestFailingAfterAWhile(t *testing.T) {
	t.Parallel()
	since := map[string]time.Time{}
	start := time.Now()
	for _, c := range []struct {
		after time.Duration
		state string
		want  bool
	}{
		{0, "ok", false},
		{10 * time.Second, "unreadable", false},
		{22 * time.Second, "ok", false},
		{30 * time.Second, "unreadable", false},
		{59 * time.Second, "unreadable", false},
		{60 * time.Second, "unreadable", true},
		{90 * time.Second, "unreadable", true},
		{91 * time.Second, "stuck", false},
		{92 * time.Second, "unreadable", false},
	} {
		s := &api.Status{At: start.Add(c.after), GPUs: []api.GPUStatus{{UUID: "GPU-1", State: c.state}, {UUID: "GPU-2", State: "ok"}}}
		if got := failing(since, s); got["GPU-1"] != c.want || got["GPU-2"] {
			t.Errorf("after %s it is %s, and failing are %v", c.after, c.state, got)
		}
	}
	failing(since, &api.Status{})
	if len(since) > 0 {
		t.Errorf("of GPUs that are not there any more is kept %v", since)
	}
}
