package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// Leases in cgroups of gpushare are stopped; processes that are attached in place continue.
func TestPlanUnmanageStops(t *testing.T) {
	at := gpu.Placement{Start: 4, Size: 4}
	grant := lease.Grant{Tenant: "red", Spec: api.GrantSpec{Name: "part", Timeslice: &api.ShareSpec{Share: 30}}}
	of := func(id, held string, state lease.State, cgroup string) lease.Lease {
		return lease.Lease{
			ID:        id,
			User:      "alice",
			Origin:    held,
			State:     state,
			Terms:     grant,
			Place:     lease.Place{GPUs: []gpu.UUID{"GPU-2"}},
			Isolation: api.IsolationStatus{Cgroup: cgroup},
		}
	}
	cut := of("cut", lease.OriginAttached, lease.Running, "/elsewhere")
	cut.Place = lease.Place{GPUs: []gpu.UUID{observetest.One}, Instance: &at}
	live := []lease.Lease{
		of("run", "", lease.Running, "/gpushare/run"),
		of("just-placed", lease.OriginRun, lease.Placed, ""),
		of("observed", lease.OriginRun, lease.Running, ""),
		of("detached", lease.OriginDetached, lease.Running, "/gpushare/detached"),
		of("container", lease.OriginContainer, lease.Running, "/gpushare/container"),
		of("attached", lease.OriginAttached, lease.Running, "/elsewhere"),
		of("login", lease.OriginLogin, lease.Running, "/user.slice"),
		of("unit", lease.OriginUnit, lease.Running, "/system.slice"),
		cut,
	}
	hardware := []step.Step{
		{Kind: mig.KindDestroy, GPU: string(observetest.One), Args: step.Must(mig.InstanceArgs{Placed: mig.Placed{Placement: at}})},
	}
	other := lease.Lease{
		ID:     "other",
		User:   "bob",
		Origin: lease.OriginRun,
		State:  lease.Running,
		Terms:  lease.Grant{Tenant: "blue", Spec: grant.Spec},
	}
	red := []cgroup.SliceState{{Name: cgroup.SliceName{Tenant: "red"}}, {Name: cgroup.SliceName{Tenant: "red", Grant: "part"}}}
	for _, c := range []struct {
		what              string
		names             []cgroup.SliceState
		hardware          []step.Step
		stopped, released []string
	}{
		{store.UnmanagedRestrictions, nil, nil, []string{"run", "just-placed", "detached", "container"}, nil},
		{store.UnmanagedAll, nil, hardware, []string{"run", "just-placed", "detached", "container", "cut"}, []string{"attached", "login", "unit"}},
		// Without cgroups: leases that are tracked by the name of a removed slice end first.
		{store.UnmanagedRestrictions, red, nil, []string{"run", "just-placed", "observed", "detached", "container"}, nil},
	} {
		what := c.what
		var stopped, released []string
		for _, s := range PlanUnmanageStops(append(live, other), c.names, c.hardware, what) {
			id, _, _ := strings.Cut(s.Text[strings.LastIndex(s.Text, "lease ")+len("lease "):], ":")
			switch {
			case s.Kind == KindLeaseStop && s.Disruption == step.Running:
				stopped = append(stopped, id)
			case s.Kind == KindLeaseRelease && s.Disruption == step.None:
				released = append(released, id)
			default:
				t.Errorf("%s: a step %+v", what, s)
			}
		}
		if !slices.Equal(stopped, c.stopped) || !slices.Equal(released, c.released) {
			t.Errorf("%s: stopped are %q, released are %q", what, stopped, released)
		}
	}
}

// A GPU gets its former modes as far as no more authority is needed; foreign instances stay.
func TestPlanUnmanageGPU(t *testing.T) {
	on, off, yes := true, false, true
	resetless := func(g *observe.GPU) { g.MIG.Resetless = &yes }
	pending := func(g *observe.GPU) { g.MIG.Pending, g.Profiles = true, nil }
	process := func(g *observe.GPU) { g.Processes = []gpu.Process{{PID: 77}} }
	leaseOn := func() Usage {
		u := NoUsage()
		u.GPU = func(gpu.UUID) []string { return []string{"red-1"} }
		return u
	}
	foreign := NoUsage()
	foreign.Managed = func(_ gpu.UUID, in *gpu.Instance) bool { return in.Placement.Start == 4 }
	for _, c := range []struct {
		name  string
		have  observe.GPU
		was   store.GPUModes
		use   Usage
		steps []string
		warns string
	}{
		{name: "never changed", have: observetest.Device(false), use: NoUsage()},
		{name: "MIG was on before", have: observetest.Device(true, observetest.Instance(9, 4)), use: NoUsage(), steps: []string{"destroy 3g.20gb at 4"}},
		{name: "found on", have: observetest.Device(true, observetest.Instance(9, 4)), was: store.GPUModes{MIG: &on}, use: NoUsage(), steps: []string{"destroy 3g.20gb at 4"}},
		{name: "found off, no reset needed", have: observetest.With(observetest.Device(true, observetest.Instance(9, 4)), resetless), was: store.GPUModes{MIG: &off}, use: NoUsage(), steps: []string{"destroy 3g.20gb at 4", "turn off MIG mode"}},
		{name: "found off, a reset needed", have: observetest.Device(true, observetest.Instance(9, 4)), was: store.GPUModes{MIG: &off}, use: NoUsage(), steps: []string{"destroy 3g.20gb at 4"}, warns: "and stays on: "},
		{name: "a foreign instance next to a managed one", have: observetest.With(observetest.Device(true, observetest.Instance(9, 4), observetest.Instance(19, 0)), resetless), was: store.GPUModes{MIG: &off}, use: foreign, steps: []string{"destroy 3g.20gb at 4"}, warns: "and stays on: "},
		{name: "only a foreign instance", have: observetest.Device(true, observetest.Instance(19, 0)), use: foreign},
		{name: "the compute mode", have: observetest.Device(false), was: store.GPUModes{ComputeMode: gpu.ComputeExclusiveProcess}, use: NoUsage(), steps: []string{"set the compute mode to " + string(gpu.ComputeExclusiveProcess)}},
		{name: "the compute mode as it was", have: observetest.Device(false), was: store.GPUModes{ComputeMode: gpu.ComputeDefault}, use: NoUsage()},
		{name: "lost", have: observetest.With(observetest.Device(true), func(g *observe.GPU) { g.Err = gpu.ErrLost }), was: store.GPUModes{MIG: &off}, use: NoUsage(), warns: "does not answer"},
		{name: "a pending mode that was found off, profiles not reported", have: observetest.With(observetest.Device(false), pending), was: store.GPUModes{MIG: &off}, use: NoUsage(), steps: []string{"turn off MIG mode"}},
		{name: "found on, turned off, no reset needed", have: observetest.With(observetest.Device(false), resetless), was: store.GPUModes{MIG: &on}, use: NoUsage(), steps: []string{"turn on MIG mode"}},
		{name: "found on, turned off, a reset needed", have: observetest.Device(false), was: store.GPUModes{MIG: &on}, use: NoUsage(), warns: "GPU 1: MIG mode was on before gpushare changed it, and stays off: the GPU must be reset for it; 'nvidia-smi -i 1 -mig 1' turns it on once the GPU is idle"},
		{name: "found on, turned off, and on is pending", have: observetest.With(observetest.Device(false), pending), was: store.GPUModes{MIG: &on}, use: NoUsage(), warns: "stays pending: the GPU must be reset for it"},
		{name: "found on, turned off, a lease in the way", have: observetest.With(observetest.Device(false), resetless), was: store.GPUModes{MIG: &on}, use: leaseOn(), steps: []string{"turn on MIG mode"}},
		{name: "found on, turned off, a process of no lease in the way", have: observetest.With(observetest.With(observetest.Device(false), resetless), process), was: store.GPUModes{MIG: &on}, use: NoUsage(), warns: "stays off: cannot turn on MIG mode: the GPU is in use by pid 77"},
		{name: "found on, and off is pending", have: observetest.With(observetest.Device(true), func(g *observe.GPU) { g.MIG.Pending = false }), was: store.GPUModes{MIG: &on}, use: NoUsage(), steps: []string{"turn on MIG mode"}},
		{name: "never changed, and on is pending", have: observetest.With(observetest.Device(false), pending), use: NoUsage()},
		{name: "never changed, on, and off is pending", have: observetest.With(observetest.Device(true, observetest.Instance(9, 4)), func(g *observe.GPU) { g.MIG.Pending = false }), use: NoUsage(), steps: []string{"destroy 3g.20gb at 4"}},
		{name: "profiles not reported", have: observetest.With(observetest.Device(true), func(g *observe.GPU) { g.Profiles = nil }), was: store.GPUModes{MIG: &off}, use: NoUsage(), warns: "does not report its profiles"},
		{name: "in use", have: observetest.Device(true, observetest.Instance(9, 4)), use: leaseAt(4), steps: []string{"destroy 3g.20gb at 4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps, warnings := PlanUnmanageGPU(&c.have, c.was, c.use)
			var got []string
			for _, s := range steps {
				got = append(got, s.Text)
			}
			if diff := cmp.Diff(c.steps, got); diff != "" {
				t.Error(diff)
			}
			if all := strings.Join(warnings, "; "); (c.warns == "") != (all == "") || !strings.Contains(all, c.warns) {
				t.Errorf("the warnings are %q, want %q", all, c.warns)
			}
			if c.name == "in use" {
				if err := AdmitUnmanage(steps, nil, Authority{}); err == nil || !strings.Contains(err.Error(), "red-cut-1") {
					t.Errorf("the error does not name the lease: %v", err)
				}
				if err := AdmitUnmanage(steps, nil, Authority{Force: true}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
