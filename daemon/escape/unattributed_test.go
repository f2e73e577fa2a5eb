package escape

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
)

func TestUnattributed(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	d := &Escapes{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), func() time.Time { return now })}
	sub, end := d.Events.Subscribe()
	defer end()
	want := func(enforce api.OnOff, policy string) *state.Desired {
		return &state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: enforce, Isolation: &api.IsolationSpec{Unattributed: policy}}}}
	}
	one := unattributedProcess{process: cgroup.Process{PID: 10, Start: 1}, name: "burn", gpu: "GPU-a", where: "GPU 3"}
	two := unattributedProcess{process: cgroup.Process{PID: 11, Start: 2}, name: "burn", gpu: "GPU-a", where: "GPU 3"}
	root := unattributedProcess{
		process: cgroup.Process{PID: 12, Start: 3},
		name:    "dcgm",
		gpu:     "GPU-a",
		where:   "GPU 3",
		exempt:  "it belongs to root",
	}
	var x unattributedTracker
	steps := []struct {
		name   string
		after  time.Duration
		want   *state.Desired
		found  []unattributedProcess
		due    int // its pid
		events int
	}{
		{name: "first observed", want: want("on", "stop"), found: []unattributedProcess{one, root}, events: 2},
		{
			name:   "within the grace period",
			after:  stop.UnattributedGrace - time.Second,
			want:   want("on", "stop"),
			found:  []unattributedProcess{one, root, two},
			events: 1,
		},
		{
			name:  "after the grace period",
			after: time.Second,
			want:  want("on", "stop"),
			found: []unattributedProcess{two, one, root},
			due:   10,
		},
		{name: "only reported", after: time.Second, want: want("on", "report"), found: []unattributedProcess{two, one, root}},
		{name: "only observed", after: time.Second, want: want("observe", "stop"), found: []unattributedProcess{two, one, root}},
		{name: "the oldest first", after: time.Hour, want: want("on", "stop"), found: []unattributedProcess{two, one, root}, due: 10},
		{name: "then the next", after: time.Second, want: want("on", "stop"), found: []unattributedProcess{two, root}, due: 11},
		{name: "in a lease for a moment", after: time.Second, want: want("on", "stop"), found: []unattributedProcess{root}},
		{
			name:   "the grace period starts again",
			after:  time.Second,
			want:   want("on", "stop"),
			found:  []unattributedProcess{two, root},
			events: 1,
		},
	}
	for _, s := range steps {
		now = now.Add(s.after)
		due, ok := x.report(d, s.want, s.found)
		if ok != (s.due != 0) || due.process.PID != s.due {
			t.Errorf("%s: %d is stopped, want %d", s.name, due.process.PID, s.due)
		}
		if len(sub.C) != s.events {
			t.Errorf("%s: %d events, want %d", s.name, len(sub.C), s.events)
		}
		for range len(sub.C) {
			if e := <-sub.C; e.Kind != "gpu.unattributed" || e.GPU != "GPU-a" || !strings.Contains(e.Message, "GPU 3") {
				t.Errorf("%s: the event is %+v", s.name, e)
			}
		}
		conditions := len(d.Conditions.List())
		if s.want.Enforcing() && conditions != len(s.found) || !s.want.Enforcing() && conditions != 0 {
			t.Errorf("%s: %d conditions for %d processes", s.name, conditions, len(s.found))
		}
	}
}

// A process is found once, and a GPU that it only received hides none that it uses.
func TestWithProcess(t *testing.T) {
	received := unattributedProcess{process: cgroup.Process{PID: 10}, gpu: "GPU-a", received: "another user opened it"}
	uses := unattributedProcess{process: cgroup.Process{PID: 10}, gpu: "GPU-b"}
	other := unattributedProcess{process: cgroup.Process{PID: 11}, gpu: "GPU-b"}
	for _, tt := range []struct{ add, want []unattributedProcess }{
		{[]unattributedProcess{received, other, uses}, []unattributedProcess{uses, other}},
		{[]unattributedProcess{uses, received}, []unattributedProcess{uses}},
		{[]unattributedProcess{uses, uses}, []unattributedProcess{uses}},
	} {
		var got []unattributedProcess
		for _, s := range tt.add {
			got = withProcess(got, s)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%+v\nwant %+v", got, tt.want)
		}
	}
}
