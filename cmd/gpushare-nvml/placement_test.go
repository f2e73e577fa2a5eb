//go:build cgo

package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
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
	in, err := n.CreateInstance(testContext(t), id, gpu.NewInstance{ProfileID: 5, Placement: gpu.Placement{Size: 4}, Compute: []gpu.NewCompute{at(1), at(3), at(2)}})
	if err != nil {
		t.Fatal(err)
	}
	before := truthOf(t, n)
	for name, symbols := range computeDrivers(exported(t, "535")) {
		t.Run(name, func(t *testing.T) {
			c := client(t, symbols)
			for _, fault := range [][]string{{"ComputeInstanceDestroy", "--nth", "1"}, {"ComputeInstanceDestroy", "--nth", "2"}, {"ComputeInstanceDestroy", "--nth", "3"}, {"GpuInstanceDestroy"}} {
				n.ctl(slices.Concat([]string{"fault", "add", fault[0], "fail", "--code", "19"}, fault[1:])...)
				if err := c.DestroyInstance(testContext(t), id, in.ID); !errors.Is(err, gpu.ErrInUse) || strings.Contains(err.Error(), "lost") {
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
			layouts := [][]string{{"1c.3g.20gb", "2c.3g.20gb"}, {"3g.20gb"}, {"1c.4g.20gb", "2c.4g.20gb", "1g.5gb"}, {"1c.4g.20gb", "1c.4g.20gb", "2c.4g.20gb", "1g.5gb"}, {"7g.40gb"}}
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
