package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// BenchmarkBusyNode is one evaluation of a full node: 8 GPUs with 56 instances, 64 tenants, every instance leased, 200
// requests in the queue.
func BenchmarkBusyNode(b *testing.B) {
	v := View{}
	for i := range 8 {
		d := device(i, "mig")
		for j := range uint32(7) {
			d.Instances = append(d.Instances, instance(i, "1g.5gb", 1, j, 1, 5*gib))
		}
		v.GPUs = append(v.GPUs, d)
	}
	many := 100
	for i := range 64 {
		g := mig(fmt.Sprintf("t%d", i), "g", "1g.5gb")
		g.Spec.MaxLeases, g.Spec.Reserved = &many, i == 0
		if i == 0 {
			one := 1
			g.Spec.MaxLeases = &one
		}
		v.Grants = append(v.Grants, g)
	}
	tab := New(Config{Isolation: &fakeIsolation{}})
	tab.Update(v)
	var forever time.Duration
	for i := range 255 {
		if _, err := tab.Submit(Request{Tenant: fmt.Sprintf("t%d", 1+i%63), Admin: true, Wait: &forever}); err != nil {
			b.Fatal(err)
		}
	}
	if n := len(tab.Live()); n != 55 {
		b.Fatalf("%d live", n)
	}
	for b.Loop() {
		tab.Update(v)
	}
}

// BenchmarkLongQueue is one evaluation of a long queue: 2000 requests of 200 users, which all wait for one of 8 GPUs. Half of the leases
// and of the requests have a known end.
func BenchmarkLongQueue(b *testing.B) {
	v := View{}
	for i := range 8 {
		v.GPUs = append(v.GPUs, device(i, "exclusive"))
	}
	for i := range 20 {
		v.Grants = append(v.Grants, unlimited(exclusive(fmt.Sprintf("t%d", i), "g", 1+i%3)))
	}
	tab := New(Config{Isolation: &fakeIsolation{}})
	closed := v
	closed.Maintenance = "it is being changed" // Nothing is placed meanwhile.
	tab.Update(closed)
	hour := api.Duration(time.Hour)
	for i := range 2000 {
		r := Request{Tenant: fmt.Sprintf("t%d", i%20), Admin: true, UID: 1000 + i%200, Wait: queueForever()}
		if i%2 == 0 {
			r.MaxTime = &hour
		}
		if _, err := tab.Submit(r); err != nil {
			b.Fatal(err)
		}
	}
	tab.Update(v)
	b.ReportAllocs()
	for b.Loop() {
		tab.Update(v)
	}
}
