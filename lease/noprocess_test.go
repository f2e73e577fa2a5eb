package lease

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

// A lease gets what is free now: memory that is used and in no process is in its way where no live lease may have it, on GPUs and on
// instances, and also where the spec allows overcommit.
func TestMemoryInNoProcessIsNotGranted(t *testing.T) {
	whole := mig("a", "whole", "3g.20gb")
	used := func(v *View, at int, bytes uint64) { v.GPUs[0].Instances[at].InNoProcess = bytes }
	for _, c := range []struct {
		name string
		gpu  GPUView
		has  func(v *View)
		live []Grant // that have the first place
		g    Grant
		want string // why it gets no place; empty: it gets one
		at   uint32 // where the instance starts
	}{
		{name: "a share of an instance, next to another", gpu: sharing(0), has: func(v *View) { used(v, 0, 12*gib) }, g: inInstance("a", "3g.20gb", 10, 9*gib), at: 4},
		{name: "a share of an instance that fits", gpu: sharing(0), has: func(v *View) { used(v, 0, 12*gib); used(v, 1, 12*gib) }, g: inInstance("a", "3g.20gb", 10, 7*gib)},
		{name: "a share of no instance", gpu: sharing(0), has: func(v *View) { used(v, 0, 12*gib); used(v, 1, 12*gib) }, g: inInstance("a", "3g.20gb", 10, 9*gib), want: "3g.20gb at 4 on GPU 0 lacks 2 GiB of memory (12 GiB are used, and in no process)"},
		{name: "a share next to the lease that it may be of", gpu: sharing(0), has: func(v *View) { used(v, 0, 9*gib); used(v, 1, 19*gib) }, live: []Grant{inInstance("b", "3g.20gb", 10, 9*gib)}, g: inInstance("a", "3g.20gb", 10, 9*gib)},
		{name: "a whole instance, next to another", gpu: partitionedInTwo(), has: func(v *View) { used(v, 0, gib) }, g: whole, at: 4},
		{name: "no whole instance", gpu: partitionedInTwo(), has: func(v *View) { used(v, 0, gib); used(v, 1, gib) }, g: whole, want: "3g.20gb at 0 on GPU 0 is closed: 1 GiB of its memory are used, and in no process"},
		{name: "an exclusive GPU", gpu: device(0, api.ModeExclusive), has: func(v *View) { v.GPUs[0].InNoProcess = gib }, g: exclusive("a", "one", 1), want: "GPU 0 is closed: 1 GiB of its memory are used, and in no process"},
		{name: "overcommit, and it fits alone", gpu: overcommitted(), has: func(v *View) { v.GPUs[0].InNoProcess = 9 * gib }, live: []Grant{timeslice("b", "most", 10, 39*gib)}, g: timeslice("a", "part", 10, 30*gib)},
		{name: "overcommit, and it does not fit alone", gpu: overcommitted(), has: func(v *View) { v.GPUs[0].InNoProcess = 11 * gib }, live: []Grant{timeslice("b", "small", 10, gib)}, g: timeslice("a", "part", 10, 30*gib), want: "GPU 0 lacks 1 GiB of memory (10 GiB are used, and in no process)"},
		{name: "overcommit, and more than one GPU has", gpu: overcommitted(), has: func(*View) {}, live: []Grant{timeslice("b", "most", 10, 39*gib)}, g: timeslice("a", "part", 10, 60*gib)},
		{name: "overcommit, and nothing else is free", gpu: overcommitted(), has: func(v *View) { v.GPUs[0].InNoProcess = gib }, g: timeslice("a", "part", 10, 60*gib), want: "GPU 0 lacks 1 GiB of memory (1 GiB are used, and in no process)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := View{GPUs: []GPUView{c.gpu}}
			o := newOccupancy()
			for i := range c.live {
				p, ob := place(&c.live[i], &v, o)
				if p == nil {
					t.Fatal(ob.text)
				}
				o.add(&c.live[i], p, false)
			}
			c.has(&v)
			p, ob := place(&c.g, &v, o)
			switch {
			case c.want != "" && (p != nil || !strings.Contains(ob.text, c.want)):
				t.Errorf("it has the place %+v, %+v", p, ob)
			case c.want == "" && p == nil:
				t.Errorf("it has no place: %s", ob.text)
			case c.want == "" && p.Instance != nil && p.Instance.Start != c.at:
				t.Errorf("it has the instance at %d, want %d", p.Instance.Start, c.at)
			}
		})
	}
}

func partitionedInTwo() GPUView {
	d := device(0, api.ModeMIG)
	d.Instances = []InstanceView{instance(0, "3g.20gb", 3, 0, 4, 20*gib), instance(0, "3g.20gb", 3, 4, 4, 20*gib)}
	return d
}

func overcommitted() GPUView {
	d := device(0, api.ModeTimeslice)
	d.Overcommit = true
	return d
}

// Memory in no process that may be of a lease ends with it: a request that waits for the end of the lease has a start that is known,
// and what it claims is lent until then; at the end it has a place, before the memory is observed again. What is more than the lease
// was granted does not end.
func TestMemoryInNoProcessEndsWithItsLease(t *testing.T) {
	for _, c := range []struct {
		name  string
		gpu   func() GPUView
		grant Grant
		bytes uint64
		known bool
	}{
		{"of an exclusive GPU", func() GPUView { return device(0, api.ModeExclusive) }, unlimited(exclusive("a", "one", 1)), 20 * gib, true},
		{"of an instance", func() GPUView { d := partitionedInTwo(); d.Instances = d.Instances[:1]; return d }, unlimited(mig("a", "one", "3g.20gb")), 15 * gib, true},
		{"of a share", func() GPUView { return device(0, api.ModeTimeslice) }, withMemory(30), 20 * gib, true},
		{"of a share, and more", func() GPUView { return device(0, api.ModeTimeslice) }, withMemory(30), 39 * gib, true},
		{"of a share, and too much", func() GPUView { return device(0, api.ModeTimeslice) }, withMemory(30), 40 * gib, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			other := c.grant
			other.Tenant = "b"
			v := View{Generation: 1, GPUs: []GPUView{c.gpu()}, Grants: []Grant{c.grant, other}}
			t1 := newClocked(t, v)
			first := t1.queue("a", c.grant.Spec.Name, 1001, time.Hour)
			if !isPlaced(t1.Table, first) {
				t.Fatal("the first is not placed")
			}
			v.GPUs = []GPUView{c.gpu()}
			v.GPUs[0].InNoProcess = c.bytes
			if len(v.GPUs[0].Instances) > 0 {
				v.GPUs[0].InNoProcess, v.GPUs[0].Instances[0].InNoProcess = 0, c.bytes
			}
			t1.Update(v)
			second := t1.queue("b", c.grant.Spec.Name, 1002, time.Hour)
			if isPlaced(t1.Table, second) {
				t.Fatal("the second is placed")
			}
			if at := t1.lease(second).ExpectedStart; (at != nil) != c.known {
				t.Errorf("it is expected to start at %v, known: %v", at, c.known)
			}
			observed := slices.Clone(v.GPUs)
			observed[0].Instances = slices.Clone(observed[0].Instances)
			t1.end(first)
			if isPlaced(t1.Table, second) != c.known {
				t.Errorf("at the end of the first it is placed: %v, want %v", !c.known, c.known)
			}
			if diff := cmp.Diff(observed, v.GPUs); diff != "" {
				t.Errorf("the end of a lease changes what the table was given: %s", diff)
			}
		})
	}
}

// A request does not ask for the very instance that is there and whose memory is used and in no process: nothing would be created, and
// it would ask again at once. It waits until the memory is free.
func TestInstanceWithMemoryInNoProcessIsNotCreatedAgain(t *testing.T) {
	w := newDynamicFixture(t, 1, mig("a", "whole", "4g.24gb"))
	first := queue(t, w.Table, "a", "whole")
	w.createPending()
	w.end(first)
	w.view.GPUs[0].Instances = slices.Clone(w.view.GPUs[0].Instances)
	w.view.GPUs[0].Instances[0].InNoProcess = gib
	w.update()
	second := queue(t, w.Table, "a", "whole")
	if list := w.TakePendingInstances(); len(list) > 0 {
		t.Errorf("it asks for %s", listPending(list))
	}
	w.expect(second, "waits: no capacity for another 4g.24gb instance; ")
	w.view.GPUs[0].Instances = slices.Clone(w.view.GPUs[0].Instances)
	w.view.GPUs[0].Instances[0].InNoProcess = 0
	w.update()
	w.expect(second, "4g.24gb on GPU-0 at 0")
}

func withMemory(gibibytes uint64) Grant { return unlimited(timeslice("a", "one", 10, gibibytes*gib)) }
