package change

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/planner/plannertest"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/store/storetest"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
)

// unitHost is a service manager with these units.
type unitHost struct {
	runs   map[string]bool
	broken map[string]error // by "stop x.service" and "start x.service"
	did    []string
	calls  int
	stops  map[string]bool  // these were stopped, and are not stopped yet
	unread map[string]error // these cannot be read
	stopAt int              // the daemon is stopped before this call is carried out; 0: never
	stop   func()           // stops the daemon
}

func (u *unitHost) call(what, unit string, becomes bool) error {
	if u.calls++; u.calls == u.stopAt {
		u.stop()
		return context.Canceled
	}
	if err := u.broken[what+" "+unit]; err != nil {
		return err
	}
	if u.runs[unit] != becomes {
		u.did = append(u.did, what+" "+unit)
	}
	u.runs[unit] = becomes
	return nil
}

func (u *unitHost) UnitActive(_ context.Context, unit string) (bool, error) {
	runs, ok := u.runs[unit]
	if !ok {
		return false, cgroup.ErrNotFound
	}
	return runs, nil
}

func (u *unitHost) UnitRuns(ctx context.Context, unit string) (bool, error) {
	if err := u.unread[unit]; err != nil {
		return false, err
	}
	active, err := u.UnitActive(ctx, unit)
	return active && !u.stops[unit], err
}

func (u *unitHost) StopUnit(_ context.Context, unit string) error { return u.call("stop", unit, false) }

func (u *unitHost) StartUnit(_ context.Context, unit string) error {
	return u.call("start", unit, true)
}

const dcgm, exporter = "nvidia-dcgm.service", "exporter.service"

func TestPlanQuiesce(t *testing.T) {
	units := map[int]string{10: dcgm, 11: exporter, 12: "slurmd.service"}
	createSteps := []step.Step{{Kind: mig.KindCreate, GPU: string(observetest.One)}}
	for _, c := range []struct {
		name    string
		quiesce []string
		runs    map[string]bool
		open    planner.OpenDevices
		steps   []step.Step
		want    []string
		warns   string
	}{
		{name: "the spec quiesces nothing", runs: map[string]bool{dcgm: true}, open: planner.OpenDevices{Complete: true, GPUs: map[gpu.UUID][]int{observetest.One: {10}}}, steps: createSteps},
		{name: "it has the GPU open", quiesce: []string{dcgm}, runs: map[string]bool{dcgm: true}, open: planner.OpenDevices{Complete: true, GPUs: map[gpu.UUID][]int{observetest.One: {10, 12}}}, steps: createSteps, want: []string{"stop " + dcgm, "start " + dcgm + " again"}},
		{name: "it has an instance open", quiesce: []string{dcgm}, runs: map[string]bool{dcgm: true}, open: planner.OpenDevices{Complete: true, Instances: map[planner.InstanceKey][]int{{GPU: observetest.One, GI: 3}: {10}}}, steps: createSteps, want: []string{"stop " + dcgm, "start " + dcgm + " again"}},
		{name: "it has another GPU open", quiesce: []string{dcgm}, runs: map[string]bool{dcgm: true}, open: planner.OpenDevices{Complete: true, GPUs: map[gpu.UUID][]int{"GPU-2": {10}}}, steps: createSteps},
		{name: "the change has no MIG step", quiesce: []string{dcgm}, runs: map[string]bool{dcgm: true}, open: planner.OpenDevices{Complete: true, GPUs: map[gpu.UUID][]int{observetest.One: {10}}}, steps: []step.Step{{Kind: planner.KindComputeMode, GPU: string(observetest.One)}}},
		{name: "it does not run", quiesce: []string{dcgm, exporter}, runs: map[string]bool{dcgm: false, exporter: true}, open: planner.OpenDevices{Complete: true, GPUs: map[gpu.UUID][]int{observetest.One: {10, 11}}}, steps: createSteps, want: []string{"stop " + exporter, "start " + exporter + " again"}},
		{name: "not every process was read", quiesce: []string{dcgm}, runs: map[string]bool{dcgm: true}, steps: createSteps, want: []string{"stop " + dcgm, "start " + dcgm + " again"}},
		{name: "an unknown unit", quiesce: []string{dcgm, "gone.service"}, runs: map[string]bool{dcgm: true}, steps: createSteps, want: []string{"stop " + dcgm, "start " + dcgm + " again"}, warns: "there is no unit gone.service"},
		{
			name: "a unit that starts them is stopped first and started last", quiesce: []string{dcgm, exporter, "exporter.timer"}, runs: map[string]bool{dcgm: true, exporter: true, "exporter.timer": true}, steps: createSteps,
			want: []string{"stop exporter.timer", "stop " + dcgm, "stop " + exporter, "start " + exporter + " again", "start " + dcgm + " again", "start exporter.timer again"},
		},
		{name: "a unit that starts no service in use keeps running", quiesce: []string{dcgm, "exporter.timer"}, runs: map[string]bool{dcgm: true, "exporter.timer": true}, open: planner.OpenDevices{Complete: true}, steps: createSteps},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &Changes{Services: &unitHost{runs: c.runs}}
			use := plannertest.NoUsage()
			use.OpenDevices = c.open
			use.Process = func(_ []*mps.State, pid int) planner.DeviceUser {
				return planner.DeviceUser{PID: pid, Unit: units[pid]}
			}
			want := &state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Quiesce: c.quiesce}}}
			q, err := d.Quiesce(t.Context(), want, use, c.steps)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range slices.Concat(q.Stop, q.Start) {
				got = append(got, s.Text)
				if s.GPU != "" || s.Disruption == step.Running {
					t.Errorf("the step is %+v", s)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("steps (-want +got):\n%s", d)
			}
			if w := strings.Join(q.Warnings, "; "); !strings.Contains(w, c.warns) || (w == "") != (c.warns == "") {
				t.Errorf("warnings %q", w)
			}
		})
	}
	t.Run("no service manager", func(t *testing.T) {
		want := &state.Desired{Spec: &api.Spec{Node: api.NodeSpec{Quiesce: []string{dcgm}}}}
		q, err := (&Changes{}).Quiesce(t.Context(), want, plannertest.NoUsage(), createSteps)
		if err != nil || len(q.Stop)+len(q.Start) != 0 || len(q.Warnings) != 1 {
			t.Errorf("it gives %+v, %v", q, err)
		}
	})
}

// A stop that was not answered in time goes on: the unit is started again although it is still active. So is one that cannot be read.
func TestAUnitThatStillStopsIsStartedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		host    unitHost
		started bool // nothing has to be done
	}{
		"it runs":           {unitHost{runs: map[string]bool{dcgm: true}}, true},
		"it still stops":    {unitHost{runs: map[string]bool{dcgm: true}, stops: map[string]bool{dcgm: true}}, false},
		"it is stopped":     {unitHost{runs: map[string]bool{dcgm: false}}, false},
		"it cannot be read": {unitHost{runs: map[string]bool{dcgm: true}, unread: map[string]error{dcgm: context.DeadlineExceeded}}, false},
		"it was removed":    {unitHost{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Changes{Services: &c.host}
			_, start := planner.UnitSteps(dcgm)
			if applied, _ := (QuiesceUnit{d}).Applied(t.Context(), start); applied != c.started {
				t.Errorf("the start is done: %v", applied)
			}
			left := d.stoppedUnits(t.Context(), &engine.Record{Steps: []step.Step{start}})
			if slices.Contains(left, dcgm) == c.started {
				t.Errorf("the stopped units are %q", left)
			}
		})
	}
}

// partition is a GPU that units are stopped for: it checks that they are stopped when it is changed.
type partition struct {
	host   *unitHost
	broken string // this GPU does not change

	mu    sync.Mutex      // guards what follows
	steps map[string]bool // by GPU: done
	wrong []string
}

func (p *partition) Applied(_ context.Context, s step.Step) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steps[s.GPU], nil
}

func (p *partition) Do(_ context.Context, s step.Step) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for unit, runs := range p.host.runs {
		if runs {
			p.wrong = append(p.wrong, unit+" ran while "+s.GPU+" was changed")
		}
	}
	if s.GPU == p.broken {
		return errors.New("it is broken")
	}
	p.steps[s.GPU] = true
	return nil
}

func (p *partition) Undo(_ context.Context, s step.Step) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps[s.GPU] = false
	return nil
}

// However a change ends, the units that were stopped for it run afterwards, and none runs while a GPU is changed. The daemon
// is stopped before each call to the service manager, and its next run resumes the change.
func TestQuiescedUnitsRunAgain(t *testing.T) {
	record := func() *engine.Record {
		stop1, start1 := planner.UnitSteps(dcgm)
		stop2, start2 := planner.UnitSteps(exporter)
		change := func(id string) step.Step {
			return step.Step{Kind: "test.change", GPU: id, Phase: step.Change, Text: "change " + id, Disruption: step.Idle}
		}
		return &engine.Record{
			ID:    "apply-1",
			Steps: planner.Number([]step.Step{stop1, stop2, change("GPU-1"), change("GPU-2"), start2, start1}),
		}
	}
	for _, c := range []struct {
		name       string
		broken     map[string]error
		gpu        string
		state      engine.State
		notStarted string // a unit that cannot be started
	}{
		{name: "no failure", state: engine.Reached},
		{name: "a GPU does not change", gpu: "GPU-2", state: engine.Undone},
		{name: "a unit does not stop", broken: map[string]error{"stop " + exporter: errors.New("it hangs")}, state: engine.Undone},
		{name: "a unit does not start", broken: map[string]error{"start " + exporter: errors.New("it fails")}, state: engine.Held, notStarted: exporter},
	} {
		for stopAt := range 8 {
			t.Run(fmt.Sprintf("%s, stopped at call %d", c.name, stopAt), func(t *testing.T) {
				host := &unitHost{runs: map[string]bool{dcgm: true, exporter: true}, broken: c.broken, stopAt: stopAt}
				hardware := &partition{host: host, steps: map[string]bool{}, broken: c.gpu}
				daemonRun := func() (*Changes, *engine.Engine) {
					d := &Changes{Reporter: report.NewReporter(slog.New(slog.NewTextHandler(t.Output(), nil)), time.Now), Services: host}
					return d, &engine.Engine{
						Handlers: engine.Handlers{
							planner.KindUnitStop:  QuiesceUnit{d},
							planner.KindUnitStart: QuiesceUnit{d},
							"test.change":         hardware,
						},
					}
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				host.stop = stop
				_, e := daemonRun()
				out := e.Run(ctx, record(), engine.Hooks{})
				if out.State() == engine.Interrupted {
					_, e = daemonRun()
					out = e.Resume(t.Context(), record(), store.Epoch{}, engine.Hooks{})
				}
				if out.State() != c.state {
					t.Errorf("it ends %+v, want %s", out, c.state)
				}
				for unit, runs := range host.runs {
					if runs != (unit != c.notStarted) {
						t.Errorf("%s runs: %v; calls: %q", unit, runs, host.did)
					}
				}
				if len(hardware.wrong) != 0 {
					t.Error(hardware.wrong)
				}
				d, _ := daemonRun()
				if left := d.stoppedUnits(t.Context(), record()); (c.notStarted == "") != (len(left) == 0) ||
					c.notStarted != "" && !slices.Contains(left, c.notStarted) {
					t.Errorf("stopped units: %q", left)
				}
			})
		}
	}
}

// A daemon that is stopped during a change starts the units again.
func TestUnitsAreStartedWhenAChangeIsInterrupted(t *testing.T) {
	host := &unitHost{runs: map[string]bool{dcgm: false, exporter: true}}
	d := &Changes{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Services: host}
	stop, start := planner.UnitSteps(dcgm)
	d.startStoppedUnits(t.Context(), &engine.Record{Steps: []step.Step{stop, start}})
	if !host.runs[dcgm] || len(host.did) != 1 {
		t.Errorf("calls: %q", host.did)
	}
}

// A unit that could not be started is retried and reported until it runs.
func TestUnitsAreStartedUntilTheyRun(t *testing.T) {
	host := &unitHost{runs: map[string]bool{dcgm: false}, broken: map[string]error{"start " + dcgm: errors.New("it fails")}}
	st := storetest.Open(t)
	if err := st.Update(func(s *store.State) error { s.StoppedUnits = []string{dcgm, "gone.service"}; return nil }); err != nil {
		t.Fatal(err)
	}
	d := &Changes{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Services: host, State: state.NewState(st, false)}
	d.RestartUnits(t.Context())
	if got := d.Conditions.List(); len(got) != 1 ||
		!strings.Contains(got[0].Message, dcgm+" was stopped for a change and does not start again: it fails") {
		t.Errorf("the conditions are %+v", got)
	}
	if left := st.State().StoppedUnits; !slices.Equal(left, []string{dcgm, "gone.service"}) && !slices.Equal(left, []string{dcgm}) {
		t.Errorf("stopped units: %q", left)
	}
	host.broken = nil
	d.RestartUnits(t.Context())
	if left := st.State().StoppedUnits; !host.runs[dcgm] || len(left) != 0 || len(d.Conditions.List()) != 0 {
		t.Errorf("stopped units: %q, the conditions are %+v", left, d.Conditions.List())
	}
}
