package devicepolicy

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

// limitingAdapter is an adapter that enforces every limit, on a hierarchy of plain files.
type limitingAdapter struct {
	cgroup.Port
	h cgroup.Hierarchy
}

func (limitingAdapter) Info() cgroup.Info {
	return cgroup.Info{Adapter: "systemd", Slices: true, Driver: cgroup.DriverSystemd, Devices: true, Limits: cgroup.LimitNames()}
}

func (l limitingAdapter) Abilities() cgroup.Abilities { return cgroup.Abilities{Hierarchy: &l.h} }

func (limitingAdapter) ScopeOf(int) (string, bool) { return "", false }

// redNode is the policy of a node with the slice of tenant red, which has a lease and uses what the files say.
type redNode struct {
	*Policy
	use  *attribution.Attribution
	node *observe.Node
	h    cgroup.Hierarchy
}

func newRedNode(t *testing.T, limits cgroup.Limits, files map[string]string) *redNode {
	t.Helper()
	st := storetest.Open(t)
	r, of := report.NewReporter(slog.New(slog.DiscardHandler), time.Now), state.NewState(st, false)
	port := limitingAdapter{h: cgroup.Hierarchy{Mount: t.TempDir()}}
	table := leasetest.TableOf(t, lease.Config{Isolation: leasetest.NoIsolation{}}, "red", "part", 1001)
	use := &attribution.Attribution{
		Reporter:    r,
		State:       of,
		Port:        port,
		Follow:      cgroup.NewProcesses("a test"),
		Attachments: cgroup.NewAttachments(cgroup.AttachmentsOptions{}),
		Table:       table,
	}
	pol := &Policy{
		Reporter: r,
		State:    of,
		Port:     port,
		Table:    table,
		Logins:   NewLoginFilter(cgroup.Hierarchy{}, "", t.TempDir(), cgroup.Info{}),
		SliceUse: use.SliceUse,
	}
	files["cgroup.procs"] = ""
	for name, text := range files {
		path := filepath.Join(port.h.Dir("/red"), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	node := &observe.Node{Slices: []cgroup.SliceState{{Name: cgroup.SliceName{Tenant: "red"}, Path: "/red", Limits: limits, Closed: true}}}
	return &redNode{pol, use, node, port.h}
}

// planSlices plans slices for the node as it is read.
func (r *redNode) planSlices(want *state.Desired, to []cgroup.Slice) []step.Step {
	return planner.PlanSlices(to, r.NodeInput(want, r.node, nil))
}

// A limit below what is in use is refused without force, and the message has the number.
func TestLimitBelowUse(t *testing.T) {
	const gib = 1 << 30
	was := cgroup.Limits{MemoryMax: new(uint64(8 * gib)), TasksMax: new(uint64(1000)), CPUQuota: new(400.0)}
	for _, c := range []struct {
		name   string
		files  map[string]string
		lower  func(*cgroup.Limits)
		reason string // empty: it is admitted
	}{
		{"memory below use", map[string]string{"memory.current": "6442450944\n", "memory.stat": "inactive_file 1073741824\n"}, func(l *cgroup.Limits) { l.MemoryMax = new(uint64(4 * gib)) }, "5 GiB of memory are in use"},
		{"memory below the cache only", map[string]string{"memory.current": "6442450944\n", "memory.stat": "inactive_file 3221225472\n"}, func(l *cgroup.Limits) { l.MemoryMax = new(uint64(4 * gib)) }, ""},
		{"memory.high below use", map[string]string{"memory.current": "6442450944\n", "memory.stat": "anon 6442450944\n"}, func(l *cgroup.Limits) { l.MemoryHigh = new(uint64(4 * gib)) }, "6 GiB of memory are in use"},
		{"tasks below use", map[string]string{"pids.current": "312\n"}, func(l *cgroup.Limits) { l.TasksMax = new(uint64(100)) }, "312 tasks run"},
		{"tasks above use", map[string]string{"pids.current": "99\n"}, func(l *cgroup.Limits) { l.TasksMax = new(uint64(100)) }, ""},
		{"a weight", map[string]string{"memory.current": "6442450944\n"}, func(l *cgroup.Limits) { l.CPUWeight = new(uint64(1)) }, ""},
		{"nothing is reported", map[string]string{}, func(l *cgroup.Limits) { l.TasksMax = new(uint64(1)) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			red := newRedNode(t, was, c.files)
			to := was
			c.lower(&to)
			steps := red.planSlices(&state.Desired{}, []cgroup.Slice{{Name: cgroup.SliceName{Tenant: "red"}, Limits: to, Closed: true}})
			err := planner.Admit(steps, planner.Authority{})
			if c.reason == "" {
				if err != nil || len(steps) != 1 {
					t.Errorf("%d steps, refused: %v", len(steps), err)
				}
				return
			}
			var refused *api.Error
			if !errors.As(err, &refused) || refused.Kind != api.KindInUse || !strings.Contains(refused.Message, c.reason) ||
				!strings.Contains(refused.Message, "red-") {
				t.Errorf("refused with %v, want %q and the lease", err, c.reason)
			}
			if err := planner.Admit(steps, planner.Authority{Force: true}); err != nil {
				t.Errorf("refused with force: %v", err)
			}
		})
	}
}

// Two readings of the CPU time of a slice show whether a quota is below its use.
func TestQuotaBelowUse(t *testing.T) {
	red := newRedNode(t, cgroup.Limits{CPUQuota: new(400.0)}, map[string]string{"cpu.stat": "usage_usec 1000000\n"})
	now := time.Now()
	red.Now = func() time.Time { return now }
	red.use.RecordRates(red.node)
	now = now.Add(10 * time.Second)
	if err := os.WriteFile(filepath.Join(red.h.Dir("/red"), "cpu.stat"), []byte("usage_usec 31000000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for quota, refuse := range map[float64]bool{200: true, 350: false} {
		steps := red.planSlices(
			&state.Desired{},
			[]cgroup.Slice{{Name: cgroup.SliceName{Tenant: "red"}, Limits: cgroup.Limits{CPUQuota: &quota}, Closed: true}},
		)
		err := planner.Admit(steps, planner.Authority{})
		if (err != nil) != refuse || refuse && !strings.Contains(err.Error(), "300% of a CPU") {
			t.Errorf("a quota of %v%%: %v", quota, err)
		}
	}
}

// A limit that was raised from outside and is in use is not lowered by the converge loop, which has no authority.
func TestConvergeSetsNoLimitBelowUse(t *testing.T) {
	red := newRedNode(t, cgroup.Limits{TasksMax: new(uint64(1000))}, map[string]string{"pids.current": "312\n"})
	steps := red.planSlices(
		red.State.Desired(),
		[]cgroup.Slice{{Name: cgroup.SliceName{Tenant: "red"}, Limits: cgroup.Limits{TasksMax: new(uint64(100))}, Closed: true}},
	)
	if len(steps) != 1 || steps[0].Disruption != step.Running {
		t.Errorf("the steps are %+v", steps)
	}
}

// A slice that gpushare did not create is reported and kept. When the record of created slices is lost, all are managed.
func TestSlicesOfOthers(t *testing.T) {
	reds, blues := cgroup.SliceName{Tenant: "red"}, cgroup.SliceName{Tenant: "blue"}
	for _, c := range []struct {
		name    string
		state   store.State
		lost    bool
		want    []cgroup.Slice
		removed int // slices to remove
	}{
		{name: "a new node", want: []cgroup.Slice{}},
		{name: "managed, and no longer desired", state: store.State{Accepted: &store.Accepted{}, CreatedSlices: map[string]bool{"red": true}}, want: []cgroup.Slice{}, removed: 1},
		{name: "another is managed", state: store.State{Accepted: &store.Accepted{}, CreatedSlices: map[string]bool{"blue": true}}, want: []cgroup.Slice{}},
		{name: "desired", want: []cgroup.Slice{{Name: reds, Closed: true}}},
		{name: "the state is lost", lost: true, want: []cgroup.Slice{{Name: blues}}, removed: 1},
		{name: "it was not recorded", state: store.State{Accepted: &store.Accepted{}}, want: []cgroup.Slice{}, removed: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			red := newRedNode(t, cgroup.Limits{}, map[string]string{})
			red.State.Lost = c.lost
			if err := red.State.Store.Update(func(s *store.State) error { *s = c.state; return nil }); err != nil {
				t.Fatal(err)
			}
			removed := 0
			for _, s := range red.planSlices(&state.Desired{}, c.want) {
				if s.Kind == isolation.KindRemove {
					removed++
				}
			}
			if removed != c.removed {
				t.Errorf("%d slices are removed, want %d", removed, c.removed)
			}
		})
	}
}
