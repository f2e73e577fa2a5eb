package lease

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// inInstance is a grant of a share of an instance.
func inInstance(tenant, profile string, share float64, memory uint64) Grant {
	g := mps(tenant, "part", share, memory)
	g.Spec.MIG = profile
	return g
}

// sharing is a GPU with two 3g.20gb instances that are shared through MPS.
func sharing(index int) GPUView {
	d := device(index, api.ModeMIG)
	d.Instances = []InstanceView{instance(index, "3g.20gb", 3, 0, 4, 20*gib), instance(index, "3g.20gb", 3, 4, 4, 20*gib)}
	d.Instances[0].MPS, d.Instances[1].MPS = true, true
	for i := range d.Instances {
		d.Profiles = append(d.Profiles, d.Instances[i].ProfileView)
	}
	return d
}

// Shares and memory are admitted for each instance alone.
func TestSharesOfInstances(t *testing.T) {
	t.Parallel()
	v := View{GPUs: []GPUView{sharing(0)}}
	o := newOccupancy()
	at := map[uint32]int{}
	for i, tenant := range []string{"a", "b", "c", "d"} {
		g := inInstance(tenant, "3g.20gb", 50, 9*gib)
		p, ob := place(&g, &v, o)
		if p == nil {
			t.Fatalf("%d: %s", i, ob.text)
		}
		if p.Instance == nil || len(p.Devices) != 1 || !strings.HasPrefix(string(p.Devices[0]), "MIG-") || p.Profile != "3g.20gb" {
			t.Fatalf("%d: placed at %+v", i, p)
		}
		at[p.Instance.Start]++
		o.add(&g, p, false)
	}
	if at[0] != 2 || at[4] != 2 {
		t.Errorf("leases at the placements: %v", at)
	}
	for _, c := range []struct {
		name string
		g    Grant
		want string
	}{
		{"no threads are left", inInstance("e", "3g.20gb", 1, gib/2), "of its threads left"},
		{"no memory is left", inInstance("e", "3g.20gb", 0, 2*gib), "lacks 1 GiB of memory"},
		{"no such instance is shared", inInstance("e", "2g.10gb", 1, gib), "there is no 2g.10gb instance with MPS now"},
		{"the whole instance", Grant{Tenant: "e", Spec: api.GrantSpec{Name: "cut", MIG: "3g.20gb"}}, "there is no 3g.20gb instance now"},
		{"a share of a whole GPU", mps("e", "whole", 1, gib), "no GPU is in mode mps now"},
	} {
		if p, ob := place(&c.g, &v, o); p != nil || !strings.Contains(ob.text, c.want) {
			t.Errorf("%s: %+v, %+v", c.name, p, ob)
		}
	}
}

// An instance takes no lease when its MPS is down, when a lease has all of it, and for a second user where MPS serves one.
func TestSharedInstanceIsClosed(t *testing.T) {
	t.Parallel()
	g := inInstance("a", "3g.20gb", 10, gib)
	first, second := 1, 2
	for _, c := range []struct {
		name string
		set  func(d *GPUView, o *occupancy)
		want string
	}{
		{"MPS is down", func(d *GPUView, _ *occupancy) { d.Instances[0].Unusable = "its MPS is down" }, "3g.20gb at 0 on GPU 0 is closed: its MPS is down"},
		{"a lease has all of it", func(_ *GPUView, o *occupancy) {
			o.add(&Grant{Tenant: "b", Spec: api.GrantSpec{Name: "cut", MIG: "3g.20gb"}}, &Place{GPUs: []gpu.UUID{"GPU-0"}, Instance: &gpu.Placement{Start: 0, Size: 4}}, false)
		}, "a lease has all of it"},
		{"one user at a time", func(d *GPUView, o *occupancy) {
			d.Instances[0].OneUser = "its MPS serves one user at a time"
			o.usedBy(first, &Place{GPUs: []gpu.UUID{"GPU-0"}, Instance: &gpu.Placement{Start: 0, Size: 4}})
		}, "3g.20gb at 0 on GPU 0 is used by another user"},
	} {
		d, o := sharing(0), newOccupancy()
		d.Instances = d.Instances[:1]
		c.set(&d, o)
		if p, ob := placeFor(&g, &View{GPUs: []GPUView{d}}, o, requester{uid: &second}); p != nil || !strings.Contains(ob.text, c.want) {
			t.Errorf("%s: %+v, %+v", c.name, p, ob)
		}
	}
}

// A grant that no instance of the layouts can ever have is refused.
func TestShareOfAnInstanceThatNeverFits(t *testing.T) {
	t.Parallel()
	v := View{GPUs: []GPUView{sharing(0)}}
	for _, c := range []struct {
		g    Grant
		want string
	}{
		{inInstance("a", "3g.20gb", 10, 19*gib), ""},
		{inInstance("a", "3g.20gb", 10, 20*gib), "more than a 3g.20gb instance has after the reserve"},
		{inInstance("a", "2g.10gb", 10, gib), "no GPU that it may use has a 2g.10gb instance with MPS"},
	} {
		err := feasible(&c.g, &v, newOccupancy())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Message, c.want) {
			t.Errorf("%s: %v", c.g.Spec.MIG, err)
		}
	}
}
