package planner

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// NoUsage has no device user, and every instance is managed.
func NoUsage() Usage {
	return Usage{
		Instance: func(gpu.UUID, gpu.Placement) []string { return nil },
		GPU:      func(gpu.UUID) []string { return nil },
		Managed:  func(gpu.UUID, *gpu.Instance) bool { return true },
		Process:  func(_ []*mps.State, pid int) DeviceUser { return DeviceUser{PID: pid, Start: 1, Name: "python"} },
	}
}

func leaseAt(start uint32) Usage {
	u := NoUsage()
	u.Instance = func(_ gpu.UUID, p gpu.Placement) []string {
		if p.Start == start {
			return []string{"red-cut-1"}
		}
		return nil
	}
	u.GPU = func(gpu.UUID) []string { return []string{"red-cut-1"} }
	return u
}

func TestPlanGPUs(t *testing.T) {
	layout := func(names ...string) *api.GPUSpec {
		return &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: api.LayoutOf(names...)}}
	}
	foreign := NoUsage()
	foreign.Managed = func(gpu.UUID, *gpu.Instance) bool { return false }
	first := uint32(1)
	for _, c := range []struct {
		name      string
		want      *api.GPUSpec
		have      observe.GPU
		use       Usage
		authority Authority
		steps     []string
		disturbs  []string
		problem   error  // its kind
		says      string // of the problem
	}{
		{name: "not in the spec", have: observetest.Device(true, observetest.Instance(9, 0)), use: NoUsage()},
		{name: "external", want: &api.GPUSpec{Mode: api.ModeExternal}, have: observetest.Device(true, observetest.Instance(9, 0)), use: NoUsage()},
		{name: "an empty GPU", want: layout("3g.20gb", "1g.5gb"), have: observetest.Device(true), use: NoUsage(), steps: []string{"create 3g.20gb at 4", "create 1g.5gb at 0"}},
		{name: "as desired", want: layout("3g.20gb", "1g.5gb"), have: observetest.Device(true, observetest.Instance(19, 6), observetest.Instance(9, 0)), use: NoUsage()},
		{name: "another layout", want: layout("7g.40gb"), have: observetest.Device(true, observetest.Instance(9, 0)), use: NoUsage(), steps: []string{"destroy 3g.20gb at 0", "create 7g.40gb at 0"}},
		{name: "an instance of both layouts stays", want: layout("3g.20gb", "2g.10gb"), have: observetest.Device(true, observetest.Instance(9, 4), observetest.Instance(19, 0)), use: NoUsage(), steps: []string{"destroy 1g.5gb at 0", "create 2g.10gb at 0"}},
		{name: "in use by a lease", want: layout("7g.40gb"), have: observetest.Device(true, observetest.Instance(9, 4)), use: leaseAt(4), problem: gpu.ErrInUse, says: "red-cut-1"},
		{name: "in use, with force", want: layout("7g.40gb"), have: observetest.Device(true, observetest.Instance(9, 4)), use: leaseAt(4), authority: Authority{Force: true}, steps: []string{"destroy 3g.20gb at 4", "create 7g.40gb at 0"}, disturbs: []string{"red-cut-1"}},
		{
			name: "in use by a process of no lease", want: layout("7g.40gb"), use: NoUsage(), problem: gpu.ErrInUse, says: "pid 42 (python)",
			have: observetest.With(observetest.Device(true, observetest.Instance(9, 0)), func(g *observe.GPU) { g.Processes = []gpu.Process{{PID: 42, Kind: gpu.ComputeProcess, GI: &first}} }),
		},
		{name: "another instance in use", want: layout("3g.20gb", "2g.10gb"), have: observetest.Device(true, observetest.Instance(9, 4), observetest.Instance(19, 0)), use: leaseAt(4), steps: []string{"destroy 1g.5gb at 0", "create 2g.10gb at 0"}},
		{name: "foreign, and it overlaps", want: layout("7g.40gb"), have: observetest.Device(true, observetest.Instance(9, 0)), use: foreign, says: "3g.20gb at 0"},
		{name: "foreign, and it does not overlap", want: layout("3g.20gb", "1g.5gb"), have: observetest.Device(true, observetest.Instance(14, 4)), use: foreign, steps: []string{"create 3g.20gb at 0", "create 1g.5gb at 6"}},
		{name: "dynamic keeps existing instances", want: &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Dynamic: true}}, have: observetest.Device(true, observetest.Instance(9, 0)), use: NoUsage()},
		{name: "a profile that the GPU does not have", want: layout("3g.40gb"), have: observetest.Device(true), use: NoUsage(), says: "3g.20gb"},
		{name: "more than fits", want: layout("4g.20gb", "3g.20gb", "1g.5gb"), have: observetest.Device(true), use: NoUsage(), says: "1g.5gb"},
		{
			name: "an instance without a compute instance is completed", want: layout("3g.20gb"), use: NoUsage(), steps: []string{"complete 3g.20gb at 0"},
			have: observetest.Device(true, instanceWith(observetest.Instance(9, 0), func(in *gpu.Instance) { in.Compute = nil })),
		},
		{name: "on needs a reset", want: layout("7g.40gb"), have: observetest.Device(false), use: NoUsage(), problem: gpu.ErrResetRequired, says: "--allow-reset"},
		{name: "on with a reset", want: layout("7g.40gb"), have: observetest.Device(false), use: NoUsage(), authority: Authority{AllowReset: true}, steps: []string{"turn on MIG mode (resets the GPU)", "create 7g.40gb at 0"}},
		{name: "on while in use", want: layout("7g.40gb"), have: observetest.Device(false), use: leaseAt(0), authority: Authority{AllowReset: true}, problem: gpu.ErrInUse, says: "red-cut-1"},
		{name: "off", want: &api.GPUSpec{Mode: api.ModeExclusive}, have: observetest.Device(true, observetest.Instance(9, 0)), use: NoUsage(), authority: Authority{AllowReset: true}, steps: []string{"destroy 3g.20gb at 0", "turn off MIG mode (resets the GPU)"}},
		{name: "off, no reset", want: &api.GPUSpec{Mode: api.ModeTimeslice}, have: observetest.Device(true), use: NoUsage(), problem: gpu.ErrResetRequired, says: "reset"},
		{name: "lost", want: layout("7g.40gb"), use: NoUsage(), problem: gpu.ErrLost, have: observetest.With(observetest.Device(true), func(g *observe.GPU) { g.Err = gpu.ErrLost })},
		{name: "lost, and not managed", use: NoUsage(), have: observetest.With(observetest.Device(true), func(g *observe.GPU) { g.Err = gpu.ErrLost })},
		{name: "profiles not reported", want: layout("7g.40gb"), use: NoUsage(), authority: Authority{AllowReset: true}, says: "profiles", have: observetest.With(observetest.Device(false), func(g *observe.GPU) { g.Profiles = nil })},
		{name: "no MIG", want: layout("7g.40gb"), use: NoUsage(), says: "does not support MIG", have: observetest.With(observetest.Device(false), func(g *observe.GPU) { g.MIG = gpu.MIGState{} })},
		{
			name: "time slicing for several processes", want: &api.GPUSpec{Mode: api.ModeTimeslice}, use: NoUsage(), steps: []string{"set the compute mode to default"},
			have: observetest.With(observetest.Device(false), func(g *observe.GPU) { g.ComputeMode = gpu.ComputeExclusiveProcess }),
		},
		{
			name: "MPS sets its compute mode", want: &api.GPUSpec{Mode: api.ModeTimeslice}, use: NoUsage(),
			have: observetest.With(observetest.Device(false), func(g *observe.GPU) { g.ComputeMode, g.MPS = gpu.ComputeExclusiveProcess, &mps.State{} }),
		},
		{
			name: "an unknown compute mode", want: &api.GPUSpec{Mode: api.ModeTimeslice}, use: NoUsage(),
			have: observetest.With(observetest.Device(false), func(g *observe.GPU) { g.ComputeMode = gpu.ComputeModeUnknown }),
		},
		{
			name: "exclusive does not change the compute mode", want: &api.GPUSpec{Mode: api.ModeExclusive}, use: NoUsage(),
			have: observetest.With(observetest.Device(false), func(g *observe.GPU) { g.ComputeMode = gpu.ComputeProhibited }),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &state.Desired{GPUs: map[gpu.UUID]*api.GPUSpec{}}
			if c.want != nil {
				d.GPUs[observetest.One] = c.want
			}
			n := &observe.Node{GPUs: []observe.GPU{c.have}}
			p := PlanGPUs(d, n, c.use, c.authority)
			err := p.Problems[observetest.One]
			if bad := c.problem != nil || c.says != ""; bad != (err != nil) {
				t.Fatalf("the problem is %v", err)
			}
			if err != nil {
				if c.problem != nil && !errors.Is(err, c.problem) {
					t.Errorf("the problem is not %v: %v", c.problem, err)
				}
				if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "GPU 1") {
					t.Errorf("the problem does not say %q: %v", c.says, err)
				}
				if len(p.Steps) > 0 {
					t.Errorf("a GPU with a problem is changed: %v", texts(p.Steps))
				}
				return
			}
			if got := texts(p.Steps); !slices.EqualFunc(got, c.steps, strings.HasPrefix) {
				t.Errorf("planned %q, want %q", got, c.steps)
			}
			var disturbs []string
			for _, s := range p.Steps {
				if s.GPU != string(observetest.One) || s.Reason == "" || len(s.Args) == 0 {
					t.Errorf("a step is incomplete: %+v", s)
				}
				if (s.Disruption == step.Running) != (len(s.Disturbs) > 0) {
					t.Errorf("a step does not name what it disturbs: %+v", s)
				}
				disturbs = append(disturbs, step.Texts(s.Disturbs)...)
			}
			if !slices.Equal(disturbs, c.disturbs) {
				t.Errorf("it disturbs %v, want %v", disturbs, c.disturbs)
			}
			if again := PlanGPUs(d, n, c.use, c.authority); !cmp.Equal(texts(again.Steps), texts(p.Steps)) {
				t.Errorf("a second plan differs: %v", texts(again.Steps))
			}
		})
	}
}

func instanceWith(in gpu.Instance, change func(*gpu.Instance)) gpu.Instance {
	change(&in)
	return in
}

func texts(steps []step.Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.Text)
	}
	return out
}

// A GPU with a problem does not prevent the plan of the others, and planning does not change its input.
func TestPlanOfSeveralGPUs(t *testing.T) {
	bad, good := observetest.Device(true), observetest.Device(true)
	bad.Err, good.Identity.UUID = gpu.ErrStuck, "GPU-2"
	n := &observe.Node{GPUs: []observe.GPU{bad, good}}
	e := &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: api.LayoutOf("7g.40gb")}}
	p := PlanGPUs(&state.Desired{GPUs: map[gpu.UUID]*api.GPUSpec{observetest.One: e, "GPU-2": e}}, n, NoUsage(), Authority{})
	if len(p.Problems) != 1 || p.Problems[observetest.One] == nil || len(p.Steps) != 1 || p.Steps[0].GPU != "GPU-2" {
		t.Errorf("planned %v with problems %v", texts(p.Steps), p.Problems)
	}
	clean := observetest.Device(true)
	clean.Identity.UUID = "GPU-2"
	if diff := cmp.Diff(clean.Snapshot, n.GPUs[1].Snapshot); diff != "" {
		t.Errorf("planning changed what was observed:\n%s", diff)
	}
}

func TestProblemError(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind api.Kind
		hint string
	}{
		{gpu.ErrResetRequired, api.KindInfeasible, "--allow-reset"},
		{gpu.ErrInUse, api.KindInUse, "--force"},
		{gpu.ErrLost, api.KindUnavailable, "gpu retry"},
		{gpu.ErrStuck, api.KindUnavailable, "gpu retry"},
		{errors.New("something else"), api.KindInfeasible, "nothing was changed"},
	} {
		var e *api.Error
		err := ProblemError(
			map[gpu.UUID]error{"GPU-0": c.err, "GPU-9": errors.New("later")}, Remedies{Command: "gpushare apply -f node.yaml"},
		)
		if !errors.As(err, &e) || e.Kind != c.kind || !strings.Contains(e.Hint, c.hint) || !strings.Contains(e.Message, "1 more") {
			t.Errorf("%v gives %+v", c.err, e)
		}
	}
	if err := ProblemError(nil, Remedies{}); err != nil {
		t.Errorf("without a problem there is an error: %v", err)
	}
}

// The last check: without authority no step disturbs a lease or a process.
func TestAdmit(t *testing.T) {
	steps := []step.Step{
		{
			Text:       "destroy 3g.20gb at 0",
			GPU:        string(observetest.One),
			Disruption: step.Running,
			Disturbs:   []step.Subject{step.LeaseOf("red-cut-1", "")},
		},
	}
	var e *api.Error
	if err := Admit(steps, Authority{AllowReset: true}); !errors.As(err, &e) || e.Kind != api.KindInUse ||
		!strings.Contains(e.Message, "red-cut-1") {
		t.Errorf("without force: %v", err)
	}
	if err := Admit(steps, Authority{Force: true}); err != nil {
		t.Errorf("with force: %v", err)
	}
	if err := Admit([]step.Step{{Disruption: step.Idle}, {Disruption: step.None}}, Authority{}); err != nil {
		t.Errorf("steps without disruption: %v", err)
	}
}
