package lease

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

func TestPlace(t *testing.T) {
	only := func(ids ...gpu.UUID) func(*Grant) {
		return func(g *Grant) { g.Spec.GPUs, g.GPUs = &api.Selector{All: true}, ids }
	}
	closed := func(d GPUView, why string) GPUView { d.Closed = why; return d }
	type held struct {
		grant Grant
		place Place
	}
	share := func(id gpu.UUID) Place { return Place{GPUs: []gpu.UUID{id}, Devices: []gpu.UUID{id}} }
	slot := func(id gpu.UUID, start, size uint32) Place {
		return Place{GPUs: []gpu.UUID{id}, Instance: &gpu.Placement{Start: start, Size: size}}
	}
	tests := []struct {
		name  string
		gpus  []GPUView
		live  []held
		kept  []held
		grant Grant
		want  string // devices, or "no: " and a part of the reason
	}{
		{
			name: "the GPU with the least shares", gpus: []GPUView{device(0, "timeslice"), device(1, "timeslice")},
			live:  []held{{timeslice("a", "x", 40, 5*gib), share("GPU-0")}},
			grant: timeslice("b", "x", 10, 5*gib), want: "GPU-1",
		},
		{
			name: "with equal shares the one with less memory granted", gpus: []GPUView{device(0, "timeslice"), device(1, "timeslice")},
			live:  []held{{timeslice("a", "x", 40, 9*gib), share("GPU-0")}, {timeslice("a", "y", 40, 5*gib), share("GPU-1")}},
			grant: timeslice("b", "x", 10, 5*gib), want: "GPU-1",
		},
		{
			name: "else the first", gpus: []GPUView{device(0, "timeslice"), device(1, "timeslice")},
			grant: timeslice("b", "x", 10, 5*gib), want: "GPU-0",
		},
		{
			name: "leases of the same grant count as load too", gpus: []GPUView{device(0, "timeslice"), device(1, "timeslice")},
			live:  []held{{timeslice("b", "x", 10, 5*gib), share("GPU-0")}},
			grant: timeslice("b", "x", 10, 5*gib), want: "GPU-1",
		},
		{
			name: "a selector", gpus: []GPUView{device(0, "timeslice"), device(1, "timeslice")},
			grant: with(timeslice("b", "x", 10, gib), only("GPU-1")), want: "GPU-1",
		},
		{
			name: "a selector that matched nothing is not all", gpus: []GPUView{device(0, "timeslice")},
			grant: with(timeslice("b", "x", 10, gib), only()), want: "no: no GPU is in mode timeslice",
		},
		{
			name: "the mode must fit", gpus: []GPUView{device(0, "exclusive"), device(1, "mps")},
			grant: mps("b", "x", 10, gib), want: "GPU-1",
		},
		{
			name: "the reserve is never granted", gpus: []GPUView{device(0, "timeslice")},
			grant: timeslice("b", "x", 10, 40*gib), want: "no: GPU 0 lacks 1 GiB of memory",
		},
		{
			name: "all but the reserve is", gpus: []GPUView{device(0, "timeslice")},
			grant: timeslice("b", "x", 10, 39*gib), want: "GPU-0",
		},
		{
			name: "a grant's memory is counted once for all its leases", gpus: []GPUView{device(0, "timeslice")},
			live:  []held{{timeslice("b", "x", 10, 30*gib), share("GPU-0")}, {timeslice("b", "x", 10, 30*gib), share("GPU-0")}},
			grant: timeslice("b", "x", 10, 30*gib), want: "GPU-0",
		},
		{
			name: "two grants' memory is added", gpus: []GPUView{device(0, "timeslice")},
			live:  []held{{timeslice("b", "x", 10, 30*gib), share("GPU-0")}},
			grant: timeslice("b", "y", 10, 10*gib), want: "no: GPU 0 lacks 1 GiB of memory",
		},
		{
			name: "overcommit", gpus: []GPUView{func() GPUView { d := device(0, "timeslice"); d.Overcommit = true; return d }()},
			live:  []held{{timeslice("b", "x", 10, 30*gib), share("GPU-0")}},
			grant: timeslice("b", "y", 10, 30*gib), want: "GPU-0",
		},
		{
			name: "reserved memory is not for another grant", gpus: []GPUView{device(0, "timeslice")},
			kept:  []held{{timeslice("a", "r", 10, 30*gib), share("GPU-0")}},
			grant: timeslice("b", "y", 10, 10*gib), want: "no: GPU 0 lacks 1 GiB",
		},
		{
			name: "reserved memory is for its own grant", gpus: []GPUView{device(0, "timeslice")},
			kept:  []held{{timeslice("a", "r", 10, 30*gib), share("GPU-0")}},
			grant: timeslice("a", "r", 10, 30*gib), want: "GPU-0",
		},
		{
			name: "time-sliced shares are weights", gpus: []GPUView{device(0, "timeslice")},
			live:  []held{{timeslice("b", "x", 80, gib), share("GPU-0")}},
			grant: timeslice("b", "y", 80, gib), want: "GPU-0",
		},
		{
			name: "shares under MPS are parts", gpus: []GPUView{device(0, "mps")},
			live:  []held{{mps("b", "x", 80, gib), share("GPU-0")}},
			grant: mps("b", "y", 30, gib), want: "no: GPU 0 has 20% of its threads left",
		},
		{
			name: "an occupied GPU is no lease's", gpus: []GPUView{occupied(device(0, "exclusive")), device(1, "exclusive")},
			grant: exclusive("b", "x", 1), want: "GPU-1",
		},
		{
			name: "and the reason says so", gpus: []GPUView{occupied(device(0, "exclusive"))},
			grant: exclusive("b", "x", 1), want: "no: 1 exclusive GPU requested, 0 idle; GPU 0 is closed: a process uses it",
		},
		{
			name:  "an occupied instance is no lease's",
			gpus:  []GPUView{occupiedAt(partitioned(0), 4)},
			grant: mig("b", "x", "3g.20gb"),
			want:  "no: no idle 3g.20gb instance: 1 of 1 in use or reserved; 3g.20gb at 4 on GPU 0 is closed: a process uses it",
		},
		{
			name: "a time-sliced GPU is shared with processes of no lease", gpus: []GPUView{occupied(device(0, "timeslice"))},
			grant: timeslice("b", "x", 10, gib), want: "GPU-0",
		},
		{
			name: "a closed GPU admits no lease", gpus: []GPUView{closed(device(0, "timeslice"), "cordoned"), device(1, "timeslice")},
			live:  []held{{timeslice("b", "x", 80, gib), share("GPU-1")}},
			grant: timeslice("b", "y", 80, gib), want: "GPU-1",
		},
		{
			name: "the reason of a closed GPU", gpus: []GPUView{closed(device(0, "timeslice"), "cordoned")},
			grant: timeslice("b", "y", 80, gib), want: "no: GPU 0 is closed: cordoned",
		},
		{
			name:  "max_leases",
			gpus:  []GPUView{device(0, "timeslice")},
			live:  []held{{timeslice("b", "x", 10, gib), share("GPU-0")}, {timeslice("b", "x", 10, gib), share("GPU-0")}},
			grant: with(timeslice("b", "x", 10, gib), func(g *Grant) { n := 2; g.Spec.MaxLeases = &n }),
			want:  "no: all its 2 leases are in use",
		},

		{
			name: "exclusive GPUs in order", gpus: []GPUView{device(0, "exclusive"), device(1, "exclusive"), device(2, "exclusive")},
			live:  []held{{exclusive("a", "x", 1), share("GPU-1")}},
			grant: exclusive("b", "x", 2), want: "GPU-0 GPU-2",
		},
		{
			name: "too few idle", gpus: []GPUView{device(0, "exclusive"), device(1, "exclusive")},
			live:  []held{{exclusive("a", "x", 1), share("GPU-1")}},
			grant: exclusive("b", "x", 2), want: "no: 2 exclusive GPUs requested, 1 idle",
		},
		{
			name: "the grant's reserved GPU first", gpus: []GPUView{device(0, "exclusive"), device(1, "exclusive")},
			kept:  []held{{exclusive("b", "x", 1), share("GPU-1")}},
			grant: exclusive("b", "x", 1), want: "GPU-1",
		},
		{
			name: "a reserved GPU is not for another grant", gpus: []GPUView{device(0, "exclusive")},
			kept:  []held{{exclusive("b", "x", 1), share("GPU-0")}},
			grant: exclusive("c", "x", 1), want: "no: 1 exclusive GPU requested, 0 idle",
		},
		{
			name: "exclusive has one lease by default", gpus: []GPUView{device(0, "exclusive"), device(1, "exclusive")},
			live:  []held{{exclusive("b", "x", 1), share("GPU-1")}},
			grant: exclusive("b", "x", 1), want: "no: its one lease is in use",
		},

		{name: "an instance by name", gpus: []GPUView{partitioned(0)}, grant: mig("b", "x", "3g.20gb"), want: "MIG-0-4"},
		{
			name: "by another driver's name of the same", gpus: []GPUView{partitioned(0)},
			grant: mig("b", "x", "3g.21gb"), want: "MIG-0-4",
		},
		{
			name:  "the name is exact",
			gpus:  []GPUView{partitioned(0)},
			grant: mig("b", "x", "1g.10gb"),
			want:  "no: there is no 1g.10gb instance now",
		},
		{name: "the smallest of those with so many slices", gpus: []GPUView{func() GPUView {
			d := device(0, "mig")
			d.Instances = []InstanceView{
				instance(0, "1g.10gb", 1, 0, 2, 10*gib),
				instance(0, "1g.5gb+me", 1, 2, 1, 5*gib, "me"),
				instance(0, "1g.5gb", 1, 3, 1, 5*gib),
			}
			return d
		}()}, grant: Grant{Tenant: "b", Spec: api.GrantSpec{Name: "x", Slices: 1}}, want: "MIG-0-3"},
		{name: "with so much memory", gpus: []GPUView{func() GPUView {
			d := device(0, "mig")
			d.Instances = []InstanceView{instance(0, "1g.5gb", 1, 3, 1, 5*gib), instance(0, "1g.10gb", 1, 0, 2, 10*gib)}
			return d
		}()}, grant: Grant{Tenant: "b", Spec: api.GrantSpec{Name: "x", Slices: 1, GPUMemory: ">=9GiB"}}, want: "MIG-0-0"},
		{name: "with an attribute", gpus: []GPUView{func() GPUView {
			d := device(0, "mig")
			d.Instances = []InstanceView{instance(0, "1g.5gb", 1, 3, 1, 5*gib), instance(0, "1g.5gb+me", 1, 2, 1, 5*gib, "me")}
			return d
		}()}, grant: Grant{Tenant: "b", Spec: api.GrantSpec{Name: "x", Slices: 1, Attributes: []string{"me"}}}, want: "MIG-0-2"},
		{name: "three slices are not seven", gpus: []GPUView{func() GPUView {
			d := device(0, "mig")
			d.Instances = []InstanceView{instance(0, "7g.40gb", 7, 0, 8, 40*gib)}
			return d
		}()}, grant: Grant{Tenant: "b", Spec: api.GrantSpec{Name: "x", Slices: 3}}, want: "no: there is no 3-slice instance now"},
		{
			name: "an instance in use is not used", gpus: []GPUView{partitioned(0)},
			live:  []held{{mig("a", "x", "3g.20gb"), slot("GPU-0", 4, 4)}},
			grant: mig("b", "x", "3g.20gb"), want: "no: no idle 3g.20gb instance: 1 of 1 in use or reserved",
		},
		{
			name: "a reserved instance is not used", gpus: []GPUView{partitioned(0)},
			kept:  []held{{mig("a", "x", "1g.5gb"), slot("GPU-0", 2, 1)}},
			grant: mig("b", "x", "1g.5gb"), want: "MIG-0-3",
		},
		{name: "an instance that is unusable or has no device", gpus: []GPUView{func() GPUView {
			d := partitioned(0)
			d.Instances[1].Unusable = "foreign"
			d.Instances[2].UUIDs = nil
			return d
		}()}, grant: mig("b", "x", "1g.5gb"), want: "no: there is no 1g.5gb instance now"},
		{
			name: "the fuller GPU first", gpus: []GPUView{partitioned(0), partitioned(1)},
			live:  []held{{mig("a", "x", "3g.20gb"), slot("GPU-1", 4, 4)}},
			grant: mig("b", "x", "1g.5gb"), want: "MIG-1-2",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := View{GPUs: tt.gpus}
			o := newOccupancy()
			for _, h := range tt.live {
				o.add(&h.grant, &h.place, false)
			}
			for _, h := range tt.kept {
				o.add(&h.grant, &h.place, true)
			}
			p, ob := place(&tt.grant, &v, o)
			got := ""
			if p == nil {
				got = "no: " + ob.text
				if strings.HasPrefix(tt.want, "no: ") && strings.Contains(got, strings.TrimPrefix(tt.want, "no: ")) {
					got = tt.want
				}
			} else {
				// The scheduler of GPU time depends on it: a lease is frozen for one GPU only.
				if tt.grant.Kind() == api.ModeTimeslice && len(p.GPUs) != 1 {
					t.Errorf("a time-sliced lease has the GPUs %v", p.GPUs)
				}
				for i, d := range p.Devices {
					if i > 0 {
						got += " "
					}
					got += string(d)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFeasible(t *testing.T) {
	layout := device(0, "mig")
	layout.Profiles = []ProfileView{{Name: "3g.20gb", Slices: 3, Memory: 20 * gib}}
	tests := []struct {
		name  string
		gpus  []GPUView
		kept  *Grant
		grant Grant
		want  string // a part of the message; empty: feasible
	}{
		{name: "in the layout and not created yet", gpus: []GPUView{layout}, grant: mig("b", "x", "3g.20gb")},
		{
			name:  "not in the layout",
			gpus:  []GPUView{layout},
			grant: mig("b", "x", "7g.40gb"),
			want:  "no GPU that it may use has a 7g.40gb instance",
		},
		{name: "an instance that is in no layout", gpus: []GPUView{partitioned(0)}, grant: mig("b", "x", "2g.10gb")},
		{
			name:  "an empty GPU",
			gpus:  []GPUView{device(0, "mig")},
			grant: mig("b", "x", "2g.10gb"),
			want:  "no GPU that it may use has a 2g.10gb instance",
		},
		{
			name:  "not known while it is being changed",
			gpus:  []GPUView{func() GPUView { d := device(0, "mig"); d.Closed = "in a change"; return d }()},
			grant: mig("b", "x", "2g.10gb"),
		},
		{name: "no such mode", gpus: []GPUView{layout}, grant: mps("b", "x", 10, gib), want: "no GPU is in mode mps"},
		{
			name:  "more memory than there is",
			gpus:  []GPUView{device(0, "timeslice")},
			grant: timeslice("b", "x", 10, 41*gib),
			want:  "41 GiB of memory on one GPU is more",
		},
		{
			name:  "more memory than a reserved grant leaves",
			gpus:  []GPUView{device(0, "timeslice")},
			kept:  func() *Grant { g := timeslice("a", "r", 10, 30*gib); return &g }(),
			grant: timeslice("b", "x", 10, 10*gib),
			want:  "more than the reserve and the reserved grants leave",
		},
		{
			name: "more threads than a reserved grant leaves", gpus: []GPUView{device(0, "mps")},
			kept: func() *Grant { g := mps("a", "r", 80, gib); return &g }(), grant: mps("b", "x", 30, gib), want: "30% of the threads",
		},
		{
			name:  "more GPUs than there are",
			gpus:  []GPUView{device(0, "exclusive")},
			grant: exclusive("b", "x", 2),
			want:  "2 exclusive GPUs are requested, and 1 can be granted",
		},
		{name: "nor is a missing one", gpus: []GPUView{missingGPU(device(0, "exclusive"))}, grant: exclusive("b", "x", 1)},
		{name: "nor a missing one with MIG", gpus: []GPUView{missingGPU(device(0, "mig"))}, grant: mig("b", "x", "3g.20gb")},
		{
			name:  "a missing one has the memory that it had",
			gpus:  []GPUView{missingGPU(device(0, "timeslice"))},
			grant: timeslice("b", "x", 10, 41*gib),
			want:  "41 GiB of memory on one GPU is more",
		},
		{
			name:  "whose memory is not known",
			gpus:  []GPUView{func() GPUView { d := missingGPU(device(0, "timeslice")); d.Capacity = 0; return d }()},
			grant: timeslice("b", "x", 10, 41*gib),
		},
		{
			name:  "a closed GPU is not infeasible",
			gpus:  []GPUView{func() GPUView { d := device(0, "exclusive"); d.Closed = "lost"; return d }()},
			grant: exclusive("b", "x", 1),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := newOccupancy()
			if tt.kept != nil {
				o.add(tt.kept, &Place{GPUs: []gpu.UUID{tt.gpus[0].UUID}}, true)
			}
			err := feasible(&tt.grant, &View{GPUs: tt.gpus}, o)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && err == nil:
				t.Error("not refused")
			case err != nil && (!strings.Contains(err.Message, tt.want) || err.Kind != api.KindInfeasible):
				t.Errorf("got %s: %s", err.Kind, err.Message)
			}
		})
	}
}

func TestMemoryFits(t *testing.T) {
	tests := []struct {
		condition string
		have      uint64
		want      bool
		bad       bool
	}{
		{"", 0, true, false},
		{">=38GiB", 38 * gib, true, false},
		{">= 38GiB", 38*gib - 1, false, false},
		{"38GiB", 39 * gib, true, false},
		{"<=10GiB", 11 * gib, false, false},
		{"<=10GiB", 10 * gib, true, false},
		{"=10GiB", 10 * gib, true, false},
		{"=10GiB", 10*gib + 1, false, false},
		{"lots", 10 * gib, false, true},
	}
	for _, tt := range tests {
		got, err := memoryFits(tt.condition, tt.have)
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("memoryFits(%q, %d) = %v, %v", tt.condition, tt.have, got, err)
		}
	}
}

func TestEntitled(t *testing.T) {
	lease := func(id string, g Grant, on gpu.UUID, s State) Lease {
		return Lease{ID: id, Terms: g, State: s, Place: Place{GPUs: []gpu.UUID{on}}}
	}
	tests := []struct {
		name   string
		leases []Lease
		want   map[string]float64
	}{
		{
			"as granted",
			[]Lease{lease("a", timeslice("a", "x", 30, gib), "g", Running), lease("b", timeslice("b", "x", 70, gib), "g", Running)},
			map[string]float64{"a": 30, "b": 70},
		},
		{
			"a sum below 100 % is not normalised",
			[]Lease{lease("a", timeslice("a", "x", 30, gib), "g", Running)},
			map[string]float64{"a": 30},
		},
		{
			"split among a grant's leases",
			[]Lease{lease("a", timeslice("a", "x", 30, gib), "g", Running), lease("b", timeslice("a", "x", 30, gib), "g", Placed)},
			map[string]float64{"a": 15, "b": 15},
		},
		{
			"for each GPU alone",
			[]Lease{lease("a", timeslice("a", "x", 30, gib), "g", Running), lease("b", timeslice("a", "x", 30, gib), "h", Running)},
			map[string]float64{"a": 30, "b": 30},
		},
		{
			"weights are normalised",
			[]Lease{lease("a", timeslice("a", "x", 50, gib), "g", Running), lease("b", timeslice("b", "x", 150, gib), "g", Running)},
			map[string]float64{"a": 25, "b": 75},
		},
		{
			"with latency: low they are kept whole",
			[]Lease{
				lease("a", lowLatency(timeslice("a", "x", 30, gib)), "g", Running), lease("b", timeslice("b", "x", 100, gib), "g", Running),
				lease("c", timeslice("c", "x", 40, gib), "g", Running),
			},
			map[string]float64{"a": 30, "b": 50, "c": 20},
		},
		{
			"threads are not",
			[]Lease{lease("a", mps("a", "x", 100, gib), "g", Running), lease("b", mps("b", "x", 100, gib), "g", Running)},
			map[string]float64{"a": 100, "b": 100},
		},
		{
			"leases that ended or wait have none",
			[]Lease{lease("a", timeslice("a", "x", 30, gib), "g", Ended), lease("b", timeslice("a", "x", 30, gib), "", Queued)},
			map[string]float64{},
		},
		{"exclusive GPUs have none", []Lease{lease("a", exclusive("a", "x", 1), "g", Running)}, map[string]float64{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Entitled(tt.leases)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestHardMemory: a grant that accepts only a hard limit of GPU memory is placed where there can be one, and where the driver limits
// each lease alone, once on each GPU.
func TestHardMemory(t *testing.T) {
	hard := func(g *Grant) { g.Spec.Accept = api.AcceptHard }
	gpuWith := func(index int, f func(*GPUView)) GPUView {
		d := device(index, "timeslice")
		f(&d)
		return d
	}
	none := func(d *GPUView) { d.NoHardMemory = "the driver is older than R615" }
	alone := func(d *GPUView) { d.HardByLease = true }
	any := func(*GPUView) {}
	for _, c := range []struct {
		name  string
		gpus  []GPUView
		grant Grant
		lease bool // on the first GPU
		want  string
		never string // why it can never be placed
	}{
		{"no limit anywhere", []GPUView{gpuWith(0, none)}, with(timeslice("b", "x", 10, gib), hard), false, "no: GPU 0 has no hard limit of GPU memory: the driver is older", "GPU 0: the driver is older than R615"},
		{"best effort", []GPUView{gpuWith(0, none)}, timeslice("b", "x", 10, gib), false, "GPU-0", ""},
		{"no memory", []GPUView{gpuWith(0, none)}, with(timeslice("b", "x", 10, 0), hard), false, "GPU-0", ""},
		{"the GPU that has one", []GPUView{gpuWith(0, none), gpuWith(1, any)}, with(timeslice("b", "x", 10, gib), hard), false, "GPU-1", ""},
		{"each lease alone, the first", []GPUView{gpuWith(0, alone)}, with(timeslice("b", "x", 10, gib), hard), false, "GPU-0", ""},
		{"each lease alone, the second", []GPUView{gpuWith(0, alone)}, with(timeslice("b", "x", 10, gib), hard), true, "no: GPU 0 has no hard limit of GPU memory: the driver limits each lease alone", ""},
		{"each lease alone, on another GPU", []GPUView{gpuWith(0, alone), gpuWith(1, alone)}, with(timeslice("b", "x", 10, gib), hard), true, "GPU-1", ""},
		{"together, the second", []GPUView{gpuWith(0, any)}, with(timeslice("b", "x", 10, gib), hard), true, "GPU-0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, o := &View{GPUs: c.gpus, Grants: []Grant{c.grant}}, newOccupancy()
			if c.lease {
				o.add(&c.grant, &Place{GPUs: []gpu.UUID{"GPU-0"}, Devices: []gpu.UUID{"GPU-0"}}, false)
			}
			p, ob := place(&c.grant, v, o)
			switch rest, refused := strings.CutPrefix(c.want, "no: "); {
			case refused && (ob == nil || !strings.Contains(ob.text, rest)):
				t.Errorf("placed at %+v, %+v; want %q", p, ob, rest)
			case !refused && (p == nil || string(p.Devices[0]) != c.want):
				t.Errorf("placed at %+v, %+v; want %s", p, ob, c.want)
			}
			if err := feasible(&c.grant, v, newOccupancy()); (err == nil) != (c.never == "") ||
				err != nil && !strings.Contains(err.Message, c.never) {
				t.Errorf("feasible: %v, want %q", err, c.never)
			}
			if g, why := NeverHard(v); (g == nil) != (c.never == "") || !strings.Contains(why, c.never) {
				t.Errorf("never hard: %v, %q", g, why)
			}
		})
	}
}

// missingGPU is a GPU that the driver does not find.
func missingGPU(d GPUView) GPUView {
	d.Missing, d.Closed, d.Instances, d.Profiles = true, "the driver does not find it", nil, nil
	return d
}

// No place is kept free on a GPU that is missing, and messages call it by its UUID if another one has its index.
func TestAMissingGPU(t *testing.T) {
	g := with(exclusive("a", "x", 1), func(g *Grant) { g.Spec.Reserved = true })
	before := map[Key][]Place{g.Key(): {{GPUs: []gpu.UUID{"GPU-0"}, Devices: []gpu.UUID{"GPU-0"}}}}
	v := View{GPUs: []GPUView{missingGPU(device(0, "exclusive")), device(1, "exclusive")}, Grants: []Grant{g}}
	if now, unmet := reserve(&v, newOccupancy(), before, nil); len(unmet) > 0 || len(now[g.Key()]) != 1 ||
		now[g.Key()][0].GPUs[0] != "GPU-1" {
		t.Errorf("kept free are %+v, and not %+v", now, unmet)
	}
	replaced := missingGPU(device(0, "exclusive"))
	replaced.Index = -1
	for want, d := range map[string]GPUView{"; GPU 0 is missing: the driver does not find it": v.GPUs[0], "; GPU-0 is missing: the driver does not find it": replaced} {
		if p, ob := place(&g, &View{GPUs: []GPUView{d}}, newOccupancy()); p != nil || !strings.HasSuffix(ob.text, want) {
			t.Errorf("placed at %+v, %+v; want %q", p, ob, want)
		}
	}
	if replaced.isNamed("-1") || !replaced.isNamed("GPU-0") {
		t.Error("a GPU without an index is named by its UUID alone")
	}
}

// occupied is a GPU that a process of no lease uses.
func occupied(d GPUView) GPUView {
	d.Occupied = "a process uses it"
	return d
}

// occupiedAt is a GPU with an instance that a process of no lease uses.
func occupiedAt(d GPUView, start uint32) GPUView {
	for i := range d.Instances {
		if d.Instances[i].Placement.Start == start {
			d.Instances[i].Occupied = "a process uses it"
		}
	}
	return d
}

// A process may get a lease of what it uses already.
func TestALeaseInPlaceOfAnOccupiedPlace(t *testing.T) {
	v := View{GPUs: []GPUView{occupied(device(0, "exclusive")), occupiedAt(partitioned(1), 4)}}
	for _, g := range []Grant{exclusive("b", "x", 1), mig("b", "y", "3g.20gb")} {
		if p, ob := placeFor(&g, &v, newOccupancy(), requester{inPlace: true}); p == nil {
			t.Errorf("%s: %s", g.Spec.Name, ob.text)
		}
	}
}
