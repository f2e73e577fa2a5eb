//go:build cgo

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/test/enumeration"
)

// computeDrivers are the drivers by what they have of placements of compute instances: their libraries' symbols.
func computeDrivers(all []string) map[string][]string {
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(names, s) })
	}
	const place, info = "nvmlGpuInstanceCreateComputeInstanceWithPlacement", "nvmlComputeInstanceGetInfo"
	return map[string][]string{
		"placements": all, "placements that are only reported": without(place), "no placements": append(without(place, info+"_v2"), info),
	}
}

// truthOf are the GPU instances as the newest library reports them.
func truthOf(t *testing.T, n *simNode) string {
	t.Helper()
	s, err := n.Snapshot(testContext(t), n.gpus[0])
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, in := range s.Instances {
		var compute []string
		for _, c := range in.Compute {
			compute = append(compute, string(c.UUID))
		}
		slices.Sort(compute)
		out = append(out, strings.Join(compute, " "))
	}
	return strings.Join(out, "; ")
}

// A GPU instance of several compute instances cannot be destroyed when a process that the driver does not list uses one of
// them. The others, which were destroyed, are at their placements again: also those that the driver would place elsewhere.
func TestSimDestroyFailsInTheMiddle(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	client := lackingClients(t, n)
	n.readGPUs(testContext(t))
	id := n.gpus[0]
	at := func(start uint32) gpu.NewCompute {
		return gpu.NewCompute{Slices: 1, Placement: &gpu.Placement{Start: start, Size: 1}}
	}
	in, err := n.CreateInstance(
		testContext(t), id,
		gpu.NewInstance{ProfileID: 5, Placement: gpu.Placement{Size: 4}, Compute: []gpu.NewCompute{at(1), at(3), at(2)}},
	)
	if err != nil {
		t.Fatal(err)
	}
	before := truthOf(t, n)
	for name, symbols := range computeDrivers(exported(t, "535")) {
		t.Run(name, func(t *testing.T) {
			c := client(t, symbols)
			for _, fault := range [][]string{{"ComputeInstanceDestroy", "--nth", "1"}, {"ComputeInstanceDestroy", "--nth", "2"}, {"ComputeInstanceDestroy", "--nth", "3"}, {"GpuInstanceDestroy"}} {
				n.ctl(slices.Concat([]string{"fault", "add", fault[0], "fail", "--code", "19"}, fault[1:])...)
				if err := c.DestroyInstance(testContext(t), id, in.ID); !errors.Is(err, gpu.ErrInUse) ||
					strings.Contains(err.Error(), "lost") {
					t.Errorf("%q fails: %v", fault, err)
				}
				n.ctl("fault", "clear")
				if d := cmp.Diff(before, truthOf(t, n)); d != "" {
					t.Fatalf("%q fails, and it is not as before:\n%s", fault, d)
				}
			}
		})
	}
}

// A layout of shared GPU instances is created, changed and removed with every driver, and the second
// time nothing is written.
func TestSimSharedLayouts(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	client := lackingClients(t, n)
	n.readGPUs(testContext(t))
	id := n.gpus[0]
	for name, symbols := range computeDrivers(exported(t, "535")) {
		t.Run(name, func(t *testing.T) {
			c := client(t, symbols)
			layouts := [][]string{
				{"1c.3g.20gb", "2c.3g.20gb"},
				{"3g.20gb"},
				{"1c.4g.20gb", "2c.4g.20gb", "1g.5gb"},
				{"1c.4g.20gb", "1c.4g.20gb", "2c.4g.20gb", "1g.5gb"},
				{"7g.40gb"},
			}
			for _, layout := range layouts {
				if _, err := to(t, c, id, layout...); err != nil {
					t.Fatalf("to %q: %v", layout, err)
				}
				writes := n.writesOf()
				if _, err := to(t, c, id, layout...); err != nil || n.writesOf() != writes {
					t.Errorf("%q again: %v, with %d writes", layout, err, n.writesOf()-writes)
				}
			}
		})
	}
}

// attempt changes a GPU to a layout. When a step fails, it and those before it are undone. completes: the plan adds compute instances that
// were missing, which are not removed again.
func attempt(t *testing.T, c gpu.Driver, id gpu.UUID, layout ...string) (completes bool, failed, undone error) {
	t.Helper()
	ctx, h := testContext(t), &mig.Handler{Driver: c}
	steps, err := stepsTo(t, c, id, layout...)
	if err != nil {
		t.Fatalf("to %q: %v", layout, err)
	}
	for i := range steps {
		completes = completes || len(steps[i].Undo) == 0
		if failed = h.Do(ctx, steps[i]); failed == nil {
			continue
		}
		for j := i; j >= 0; j-- {
			undone = errors.Join(undone, h.Undo(ctx, steps[j]))
		}
		return completes, failed, undone
	}
	return completes, nil, nil
}

// failEachCall changes a GPU to a layout until no call is left to fail: one call fails in each attempt, before or after its effect. After
// each, the GPU has its former compute instances, by their UUIDs. It returns the number of attempts that failed.
func failEachCall(t *testing.T, n *simNode, c gpu.Driver, when string, layout ...string) int {
	t.Helper()
	for nth := 1; ; nth++ {
		before := truthOf(t, n)
		n.ctl(strings.Fields(fmt.Sprintf("fault add write fail --code 999 --nth %d %s", nth, when))...)
		completes, failed, undone := attempt(t, c, n.gpus[0], layout...)
		n.ctl("fault", "clear")
		if failed == nil {
			return nth - 1
		}
		is := truthOf(t, n)
		lost := slices.DeleteFunc(uuidsOf(before), func(id string) bool { return slices.Contains(uuidsOf(is), id) })
		if undone != nil || len(lost) > 0 || is != before && !completes {
			t.Fatalf(
				"to %q, call %d fails %s: %v; undone: %v; it is not as before:\n%s", layout, nth, when, failed, undone,
				cmp.Diff(before, is),
			)
		}
	}
}

// uuidsOf lists the compute instances in a text of truthOf.
func uuidsOf(truth string) []string {
	return strings.FieldsFunc(truth, func(r rune) bool { return r == ' ' || r == ';' })
}

// Each call that changes the driver fails once on the way between layouts of shared GPU instances. What was done is undone with every
// driver, and the next try reaches the layout.
func TestSimEveryCallOfSharedLayoutsFailsOnce(t *testing.T) {
	enumeration.Long(t)
	n := serve(t, old, worker.Deadlines{})
	client := lackingClients(t, n)
	n.readGPUs(testContext(t))
	layouts := [][]string{
		{"1c.3g.20gb", "2c.3g.20gb"},
		{"3g.20gb", "1g.5gb"},
		{"1c.4g.20gb", "2c.4g.20gb", "1g.5gb"},
		{"1c.4g.20gb", "1c.4g.20gb", "2c.4g.20gb"},
		{"7g.40gb"},
	}
	for name, symbols := range computeDrivers(exported(t, "535")) {
		t.Run(name, func(t *testing.T) {
			c := client(t, symbols)
			for i, layout := range layouts {
				for _, when := range []string{"", "--after"} {
					before := layouts[(i+len(layouts)-1)%len(layouts)]
					if _, err := to(t, c, n.gpus[0], before...); err != nil {
						t.Fatalf("to %q: %v", before, err)
					}
					if calls := failEachCall(t, n, c, when, layout...); calls == 0 {
						t.Errorf("no call on the way to %q failed", layout)
					}
				}
			}
		})
	}
}
