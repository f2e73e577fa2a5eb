package lease

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// split divides the instances of a profile into compute instances of so many slices.
func split(d GPUView, profile string, into ...uint32) GPUView {
	d.Instances = slices.Clone(d.Instances)
	for i := range d.Instances {
		in := &d.Instances[i]
		if in.Name != profile {
			continue
		}
		in.UUIDs, in.Compute = nil, nil
		for j, n := range into {
			id := gpu.UUID(fmt.Sprintf("MIG-%d-%d-%d", d.Index, in.Placement.Start, j))
			in.UUIDs = append(in.UUIDs, id)
			in.Compute = append(in.Compute, ComputeView{UUID: id, Name: gpu.ComputeName(profile, n), Slices: n})
		}
	}
	return d
}

// A lease has one compute instance of an instance that is split: CUDA uses one MIG device in a process.
func TestComputeInstances(t *testing.T) {
	most := func(n int) func(*Grant) { return func(g *Grant) { g.Spec.MaxLeases = &n } }
	thirds := func() GPUView { return split(partitioned(0), "3g.20gb", 1, 1, 1) }
	for _, tt := range []struct {
		name   string
		gpus   []GPUView
		grants []Grant // submitted in this order
		want   []string
	}{
		{
			"three leases have one each",
			[]GPUView{thirds()},
			[]Grant{with(mig("b", "x", "1c.3g.20gb"), most(4))},
			[]string{"MIG-0-4-0 1c.3g.20gb", "MIG-0-4-1 1c.3g.20gb", "MIG-0-4-2 1c.3g.20gb", "no: no idle 1c.3g.20gb instance: 3 of 3 in use or reserved"},
		},
		{
			"a grant of the instance has one of them",
			[]GPUView{thirds()},
			[]Grant{with(mig("b", "x", "3g.20gb"), most(2))},
			[]string{"MIG-0-4-0 1c.3g.20gb", "MIG-0-4-1 1c.3g.20gb", "no: all its 2 leases are in use"},
		},
		{
			"the largest first",
			[]GPUView{split(partitioned(0), "3g.20gb", 1, 2)},
			[]Grant{with(mig("b", "x", "3g.20gb"), most(2))},
			[]string{"MIG-0-4-1 2c.3g.20gb", "MIG-0-4-0 1c.3g.20gb", "no: all its 2 leases are in use"},
		},
		{
			"a whole instance before a split one",
			[]GPUView{thirds(), partitioned(1)},
			[]Grant{with(mig("b", "x", "3g.20gb"), most(2))},
			[]string{"MIG-1-4 3g.20gb", "MIG-0-4-0 1c.3g.20gb", "no: all its 2 leases are in use"},
		},
		{
			"a compute instance is no whole instance",
			[]GPUView{partitioned(0)},
			[]Grant{mig("b", "x", "1c.3g.20gb")},
			[]string{"never: no GPU that it may use has a 1c.3g.20gb instance"},
		},
		{
			"nor one of another size",
			[]GPUView{thirds()},
			[]Grant{mig("b", "x", "2c.3g.20gb")},
			[]string{"never: no GPU that it may use has a 2c.3g.20gb instance"},
		},
		{
			"by slices, of the instance",
			[]GPUView{thirds()},
			[]Grant{{Tenant: "b", Spec: api.GrantSpec{Name: "x", Slices: 3}}},
			[]string{"MIG-0-4-0 1c.3g.20gb", "no: its one lease is in use"},
		},
		{
			"one for each of two tenants",
			[]GPUView{split(partitioned(0), "3g.20gb", 2, 1)},
			[]Grant{mig("b", "x", "1c.3g.20gb"), mig("c", "y", "2c.3g.20gb")},
			[]string{"MIG-0-4-1 1c.3g.20gb", "no: its one lease is in use", "MIG-0-4-0 2c.3g.20gb", "no: its one lease is in use"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tab, _ := table(t, View{GPUs: tt.gpus, Grants: tt.grants})
			var got []string
			for i := range tt.grants {
				for range 5 {
					k, err := submit(tab, tt.grants[i].Tenant, tt.grants[i].Spec.Name)
					if err != nil {
						got = append(got, err.Error())
						break
					}
					l, ok := tab.Get(k.ID())
					if !ok {
						t.Fatalf("%s is not in the table", k.ID())
					}
					p := l.Place
					got = append(got, fmt.Sprintf("%s %s", p.Devices[0], p.Profile))
					if len(p.Devices) != 1 {
						t.Errorf("a lease has %v", p.Devices)
					}
				}
			}
			if len(got) != len(tt.want) {
				t.Fatalf("%q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				want = strings.TrimPrefix(strings.TrimPrefix(want, "no: "), "never: ")
				if !strings.Contains(got[i], want) {
					t.Errorf("%d: %q, want %q", i, got[i], want)
				}
			}
		})
	}
}

// What is in use, reserved, occupied or claimed is one compute instance, and not its siblings.
func TestPartsOfAnInstance(t *testing.T) {
	at := gpu.Placement{Start: 4, Size: 4}
	device := func(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("MIG-0-4-%d", i)) }
	placeOf := func(i int) Place {
		return Place{
			GPUs:     []gpu.UUID{"GPU-0"},
			Instance: &at,
			Profile:  "1c.3g.20gb",
			Memory:   20 * gib,
			Compute:  device(i),
			Devices:  []gpu.UUID{device(i)},
		}
	}
	whole := Place{
		GPUs:     []gpu.UUID{"GPU-0"},
		Instance: &at,
		Profile:  "3g.20gb",
		Memory:   20 * gib,
		Devices:  []gpu.UUID{device(0), device(1), device(2)},
	}
	grant := mig("b", "x", "1c.3g.20gb")
	other := mig("a", "y", "1c.3g.20gb")
	for _, tt := range []struct {
		name   string
		change func(v *View, o *occupancy)
		want   string
	}{
		{"idle", func(*View, *occupancy) {}, "MIG-0-4-0"},
		{"a lease has the first", func(_ *View, o *occupancy) { p := placeOf(0); o.add(&other, &p, false) }, "MIG-0-4-1"},
		{"a lease of an older version has all", func(_ *View, o *occupancy) { o.add(&other, &whole, false) }, ""},
		{"the first is reserved for another", func(_ *View, o *occupancy) { p := placeOf(0); o.add(&other, &p, true) }, "MIG-0-4-1"},
		{"the second is reserved for it", func(_ *View, o *occupancy) { p := placeOf(1); o.add(&grant, &p, true) }, "MIG-0-4-1"},
		{"a process of no lease uses the first", func(v *View, _ *occupancy) { v.GPUs[0].Instances[3].Compute[0].Occupied = OccupiedText }, "MIG-0-4-1"},
		{"it uses the instance", func(v *View, _ *occupancy) { v.GPUs[0].Instances[3].Occupied = OccupiedText }, ""},
		{"a request claims the first", func(_ *View, o *occupancy) {
			o.claim(&PendingInstance{Ticket: "other", GPU: "GPU-0", InstanceSlot: InstanceSlot{Placement: at, Compute: device(0)}})
		}, "MIG-0-4-1"},
		{"a request claims the instance", func(_ *View, o *occupancy) {
			o.claim(&PendingInstance{Ticket: "other", GPU: "GPU-0", InstanceSlot: InstanceSlot{Placement: at}})
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, o := View{GPUs: []GPUView{split(partitioned(0), "3g.20gb", 1, 1, 1)}}, newOccupancy()
			tt.change(&v, o)
			p, ob := place(&grant, &v, o)
			switch {
			case p == nil && tt.want != "":
				t.Errorf("no place: %s", ob.text)
			case p != nil && string(p.Compute) != tt.want:
				t.Errorf("it has %s, want %q", p.Compute, tt.want)
			}
		})
	}
	// As long as a lease has one, the instance is not unused.
	o := newOccupancy()
	p := placeOf(2)
	o.add(&other, &p, false)
	if o.at("GPU-0").free(at, "", Key{}, &requester{}) || !o.at("GPU-0").free(at, device(0), Key{}, &requester{}) {
		t.Error("what is in use of the instance is not one compute instance")
	}
}

// A place that is reserved stays the same compute instance, and its grant gets it.
func TestReservedComputeInstance(t *testing.T) {
	reserved := with(mig("a", "kept", "1c.3g.20gb"), func(g *Grant) { g.Spec.Reserved = true })
	n := 3
	v := View{
		GPUs:   []GPUView{split(partitioned(0), "3g.20gb", 1, 1, 1)},
		Grants: []Grant{reserved, with(mig("b", "x", "1c.3g.20gb"), func(g *Grant) { g.Spec.MaxLeases = &n })},
	}
	tab, _ := table(t, v)
	tab.Update(v)
	_, first := mustSubmit(t, tab, "b", "x")
	_, second := mustSubmit(t, tab, "b", "x")
	if _, err := submit(tab, "b", "x"); err == nil {
		t.Error("a third lease has the reserved compute instance")
	}
	_, own := mustSubmit(t, tab, "a", "kept")
	if own.Place.Compute == "" || own.Place.Compute == first.Place.Compute || own.Place.Compute == second.Place.Compute {
		t.Errorf("%s, %s and %s", first.Place.Compute, second.Place.Compute, own.Place.Compute)
	}
}

// A request waits for a compute instance while all are in use, and another grant's request of a free one does not wait for it.
func TestQueueOfComputeInstances(t *testing.T) {
	tab, _ := table(t, View{
		GPUs:   []GPUView{split(partitioned(0), "3g.20gb", 2, 1)},
		Grants: []Grant{mig("a", "large", "2c.3g.20gb"), mig("b", "large", "2c.3g.20gb"), mig("c", "small", "1c.3g.20gb")},
	})
	k, has := mustSubmit(t, tab, "a", "large")
	waits := queue(t, tab, "b", "large")
	if isPlaced(tab, waits) {
		t.Fatal("it has a compute instance that is in use")
	}
	if _, small := mustSubmit(t, tab, "c", "small"); small.Place.Compute == has.Place.Compute {
		t.Errorf("two leases have %s", small.Place.Compute)
	}
	if err := tab.Ended(t.Context(), k.ID(), "test"); err != nil {
		t.Fatal(err)
	}
	if l, _ := tab.Get(waits.ID()); l.Place.Compute != has.Place.Compute {
		t.Errorf("after the end of the lease the request has %q", l.Place.Compute)
	}
}

// The leases of one user in one instance have its memory together.
func TestMemoryOfComputeInstances(t *testing.T) {
	n := 3
	tab, _ := table(t, View{
		PerUser: PerUser{Memory: 20 * gib},
		GPUs:    []GPUView{split(partitioned(0), "3g.20gb", 1, 1), partitioned(1)},
		Grants:  []Grant{with(mig("a", "x", "1c.3g.20gb"), func(g *Grant) { g.Spec.MaxLeases = &n }), mig("a", "y", "1g.5gb")},
	})
	for i, grant := range []string{"x", "x", "y"} {
		_, err := tab.Submit(Request{Tenant: "a", Grant: grant, Member: []string{"a"}, UID: 1001, User: "ann"})
		if refused := err != nil; refused != (i == 2) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// A request counts in the queue as what its lease has later: of an instance that is split a part, not all of it.
func TestARequestForAComputeInstanceCountsAsItsPart(t *testing.T) {
	fixed := func(names ...string) func(*GPUView) {
		return func(d *GPUView) {
			d.Instances = nil // Not created yet: the layout says what will be there.
			for _, n := range names {
				p := ProfileView{Name: "3g.20gb", Slices: 3, Memory: 20 * gib}
				if n != p.Name {
					p.Split = n
				}
				d.Profiles = append(d.Profiles, p)
			}
		}
	}
	changed := func(d GPUView, change func(*GPUView)) GPUView {
		change(&d)
		return d
	}
	for _, tt := range []struct {
		name  string
		gpus  []GPUView
		grant string
		want  float64 // of the memory of a GPU with 40 GiB
	}{
		{"a third of an instance", []GPUView{split(partitioned(0), "3g.20gb", 1, 1, 1)}, "1c.3g.20gb", 0.5 / 3},
		{"two thirds", []GPUView{split(partitioned(0), "3g.20gb", 1, 2)}, "2c.3g.20gb", 1.0 / 3},
		{"the instance, of which it gets the largest part", []GPUView{split(partitioned(0), "3g.20gb", 1, 2)}, "3g.20gb", 1.0 / 3},
		{"a whole one before a split one", []GPUView{split(partitioned(0), "3g.20gb", 1, 1, 1), partitioned(1)}, "3g.20gb", 0.5},
		{"an instance that is not split", []GPUView{partitioned(0)}, "3g.20gb", 0.5},
		{"of a layout, not created yet", []GPUView{changed(partitioned(0), fixed("1c.3g.20gb", "2c.3g.20gb"))}, "1c.3g.20gb", 0.5 / 3},
		{"the instance of such a layout", []GPUView{changed(partitioned(0), fixed("1c.3g.20gb", "2c.3g.20gb"))}, "3g.20gb", 1.0 / 3},
		{"a whole one of such a layout", []GPUView{changed(partitioned(0), fixed("1c.3g.20gb", "3g.20gb"))}, "3g.20gb", 0.5},
		{"nothing that is known", []GPUView{partitioned(0)}, "7g.40gb", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := mig("b", "x", tt.grant)
			for i := range tt.gpus {
				tt.gpus[i].Capacity = 40 * gib
			}
			v := View{GPUs: tt.gpus, Grants: []Grant{g}}
			if got := v.wouldTake(&g); math.Abs(got-tt.want) > 1e-9 {
				t.Errorf("it counts as %.3f, want %.3f", got, tt.want)
			}
			if p, _ := place(&g, &v, newOccupancy()); p != nil && math.Abs(v.partOf(&g, p)-tt.want) > 1e-9 {
				t.Errorf("its lease counts as %.3f, want %.3f", v.partOf(&g, p), tt.want)
			}
		})
	}
}
