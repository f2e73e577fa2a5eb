//go:build cgo

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/planner/plannertest"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/test/enumeration"
)

// writesOf counts the calls that change the node.
func (n *simNode) writesOf() (writes int) {
	n.t.Helper()
	for name, k := range n.calls() {
		if gpusim.IsWrite(name) {
			writes += k
		}
	}
	return writes
}

// to brings a GPU to a layout with a client of a worker: it plans as the daemon does and carries the steps out. MIG off is an
// empty layout. It returns the first error, and whether it was the plan's.
func to(t *testing.T, c gpu.Driver, id gpu.UUID, layout ...string) (planned bool, err error) {
	t.Helper()
	ctx := testContext(t)
	steps, err := stepsTo(t, c, id, layout...)
	if err != nil {
		return true, err
	}
	h := &mig.Handler{Driver: c}
	for _, step := range steps {
		if err := h.Do(ctx, step); err != nil {
			return false, err
		}
		if done, err := h.Applied(ctx, step); err != nil || !done {
			return false, fmt.Errorf("%s is not applied after it was done: %w", step.Text, err)
		}
	}
	return false, nil
}

// stepsTo plans the change of a GPU to a layout; without one, to no MIG mode.
func stepsTo(t *testing.T, c gpu.Driver, id gpu.UUID, layout ...string) ([]step.Step, error) {
	t.Helper()
	ctx := testContext(t)
	s, err := c.Snapshot(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	g := observe.GPU{Snapshot: s}
	if p, err := c.Profiles(ctx, id); err == nil { // As observe does.
		g.Profiles = &p
	}
	e := &api.GPUSpec{Mode: api.ModeTimeslice}
	if len(layout) > 0 {
		e = &api.GPUSpec{Mode: api.ModeMIG, MIG: &api.MIGSpec{Layout: api.LayoutOf(layout...)}}
	}
	use := plannertest.NoUsage()
	use.Managed = func(gpu.UUID, *gpu.Instance) bool { return true }
	return planner.PlanGPU(e, &g, use, planner.Authority{})
}

// TestSimMIGWithoutAFunction removes the functions of MIG from the library, one at a time. A change that needs it is refused
// with its name and the version of the library before anything is written; every other change is carried out whole.
func TestSimMIGWithoutAFunction(t *testing.T) {
	enumeration.Long(t)
	n := serve(t, "driver: \"580\"\ngpus:\n  - {model: H100-SXM5-80GB}\n", worker.Deadlines{})
	client := lackingClients(t, n)
	info := n.readGPUs(testContext(t))
	id := n.gpus[0]
	// Of the functions that nvml.h lists for MIG: those without which it cannot be read, its mode not be set, and its instances
	// not be changed.
	const read, mode, change = "read", "mode", "change"
	needed := map[string]string{
		"nvmlDeviceGetMigMode":                          read,
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2": read,
		"nvmlDeviceGetGpuInstances":                     read,
		"nvmlDeviceGetGpuInstanceById":                  read,
		"nvmlGpuInstanceGetInfo":                        read,
		"nvmlGpuInstanceGetComputeInstanceProfileInfo":  read,
		"nvmlGpuInstanceGetComputeInstances":            read,
		"nvmlComputeInstanceGetInfo_v2":                 read,
		"nvmlDeviceSetMigMode":                          mode,
		"nvmlDeviceCreateGpuInstanceWithPlacement":      change,
		"nvmlGpuInstanceDestroy":                        change,
		"nvmlGpuInstanceCreateComputeInstance":          change,
		"nvmlComputeInstanceDestroy":                    change,
	}
	all := exported(t, "580")
	for name := range needed {
		if !slices.Contains(all, name) {
			t.Errorf("the library has no %s: the table is wrong", name)
		}
	}
	for _, name := range all {
		if !strings.Contains(name, "Mig") && !strings.Contains(name, "Instance") || slices.Contains(essential, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			c := client(t, slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == name }))
			tried := func(needs bool, layout ...string) {
				t.Helper()
				before := n.writesOf()
				planned, err := to(t, c, id, layout...)
				writes := n.writesOf() - before
				switch {
				case !needs && err != nil:
					t.Errorf("to %q: %v, although the library has what it needs", layout, err)
				case needs && (err == nil || !planned || !errors.Is(err, gpu.ErrMissing) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), info.LibraryVersion)):
					t.Errorf(
						"to %q: %v, refused by the plan: %v; want it refused with the function and version %s", layout, err, planned,
						info.LibraryVersion,
					)
				case needs && writes != 0:
					t.Errorf("to %q: %d writes before it was refused", layout, writes)
				}
			}
			restored := func(layout ...string) {
				t.Helper()
				if _, err := to(t, n.Client, id, layout...); err != nil {
					t.Fatal(err)
				}
			}
			of := needed[name]
			tried(of != "", "3g.40gb") // the mode, and an instance
			restored("3g.40gb")
			tried(of == read || of == change, "1g.10gb", "3g.40gb") // an instance is added
			restored("3g.40gb")
			tried(of == read || of == change, "4g.40gb") // one is destroyed, one is created
			restored("3g.40gb")
			if name != "nvmlDeviceGetMigMode" { // Without it the mode counts as off: nothing is planned.
				tried(of != "") // one is destroyed, and the mode
			}
			restored()
		})
	}
}
