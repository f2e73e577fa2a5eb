package gpusim_test

import (
	"context"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
)

// TestAnyOrderOfCallsKeepsTheRules makes random calls: the state of the node is always legal, and agrees with a model of
// sets of slices.
func TestAnyOrderOfCallsKeepsTheRules(t *testing.T) {
	models := []*gpusim.Model{model(t, "A100-SXM4-40GB"), model(t, "A30-24GB"), model(t, "RTX-PRO-6000-96GB")}
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.SampledFrom(models).Draw(t, "model")
		n, err := gpusim.New(gpusim.Config{
			DriverVersion: "580.95.05", CUDAVersion: 13000, ContextMemory: 300 * gpusim.MiB,
			GPUs: []gpusim.GPUConfig{{Model: m, MIG: true}},
		}, engine.SystemClock{})
		if err != nil {
			t.Fatal(err)
		}
		d := n.Driver(1)
		ctx := context.Background()
		info, err := d.Node(ctx)
		if err != nil {
			t.Fatal(err)
		}
		id := info.GPUs[0].UUID
		var contexts []*gpusim.Context
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				p := rapid.SampledFrom(m.Profiles).Draw(t, "profile")
				at := rapid.SampledFrom(p.Placements()).Draw(t, "place")
				before := read(t, d, id)
				fits := true
				same := uint32(0)
				for _, in := range before.Instances {
					fits = fits && !in.Placement.Overlaps(at)
					if in.ProfileID == p.ID {
						same++
					}
				}
				_, err := d.CreateInstance(ctx, id, gpu.NewInstance{ProfileID: p.ID, Placement: at})
				if err == nil {
					if !fits || same >= p.Max {
						t.Fatalf("%s at %v was created in %+v", p.Name, at, before.Instances)
					}
				} else if fits && same < p.Max && len(p.Attributes) == 0 && !anyAttribute(m, before, "me.all") {
					t.Fatalf("%s at %v was refused in %+v: %v", p.Name, at, before.Instances, err)
				}
			},
			"destroy": func(t *rapid.T) {
				s := read(t, d, id)
				if len(s.Instances) == 0 {
					t.Skip("nothing to destroy")
				}
				in := rapid.SampledFrom(s.Instances).Draw(t, "instance")
				used := false
				for _, p := range s.Processes {
					used = used || *p.GI == in.ID
				}
				if err := d.DestroyInstance(ctx, id, in.ID); (err != nil) != used {
					t.Fatalf("in use %v: %v", used, err)
				}
			},
			"open": func(t *rapid.T) {
				s := read(t, d, id)
				if len(s.Instances) == 0 {
					t.Skip("nothing to use")
				}
				in := rapid.SampledFrom(s.Instances).Draw(t, "instance")
				c, err := n.OpenContext(gpusim.ContextSpec{PID: rapid.IntRange(2, 5).Draw(t, "pid"), Device: string(in.Compute[0].UUID)})
				if (err != nil) != (in.Memory.Free < 300*gpusim.MiB) {
					t.Fatalf("free %d: %v", in.Memory.Free, err)
				}
				if err == nil {
					contexts = append(contexts, c)
				}
			},
			"alloc": func(t *rapid.T) {
				if len(contexts) == 0 {
					t.Skip("no context")
				}
				_ = rapid.SampledFrom(contexts).Draw(t, "context").Alloc(rapid.Uint64Range(0, 8<<30).Draw(t, "bytes"))
			},
			"close": func(t *rapid.T) {
				if len(contexts) == 0 {
					t.Skip("no context")
				}
				contexts[0].Close()
				contexts = contexts[1:]
			},
			"": func(t *rapid.T) { check(t, m, read(t, d, id)) },
		})
	})
}

func read(t *rapid.T, d *gpusim.Driver, id gpu.UUID) gpu.Snapshot {
	s, err := d.Snapshot(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func anyAttribute(m *gpusim.Model, s gpu.Snapshot, attribute string) bool {
	for _, in := range s.Instances {
		for _, p := range m.Profiles {
			for _, a := range p.Attributes {
				if p.ID == in.ProfileID && a == attribute {
					return true
				}
			}
		}
	}
	return false
}

// check fails on an illegal state of a node.
func check(t *rapid.T, m *gpusim.Model, s gpu.Snapshot) {
	taken := make([]bool, m.Grid)
	ids, uuids := map[uint32]bool{}, map[gpu.UUID]bool{}
	used := uint64(0)
	for _, in := range s.Instances {
		for i := in.Placement.Start; i < in.Placement.Start+in.Placement.Size; i++ {
			if taken[i] {
				t.Fatalf("slice %d is used twice: %+v", i, s.Instances)
			}
			taken[i] = true
		}
		if ids[in.ID] || uuids[in.Compute[0].UUID] {
			t.Fatalf("an id or UUID occurs twice: %+v", s.Instances)
		}
		ids[in.ID], uuids[in.Compute[0].UUID] = true, true
		if in.Memory.Used+in.Memory.Free != in.Memory.Total {
			t.Fatalf("memory of an instance does not add up: %+v", in.Memory)
		}
		used += in.Memory.Used
	}
	processes := uint64(0)
	for _, p := range s.Processes {
		processes += *p.Memory
	}
	if used != s.Memory.Used || processes != used {
		t.Fatalf("instances use %d, processes %d, the GPU %d", used, processes, s.Memory.Used)
	}
}
