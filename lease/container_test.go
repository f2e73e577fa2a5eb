package lease

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// Each announced container has a place of its own until its container comes, or its time is over.
func TestAnnouncedContainers(t *testing.T) {
	v := View{GPUs: []GPUView{device(0, api.ModeExclusive), device(1, api.ModeExclusive)}, Grants: []Grant{
		exclusive("red", "whole", 1), exclusive("red", "other", 1),
	}}
	tab, _ := table(t, v)
	announce := func(grant string) (*Ticket, error) {
		return tab.Submit(Request{Tenant: "red", Grant: grant, Admin: true, Origin: OriginContainer, Immediate: true})
	}
	first, err := announce("whole")
	if err != nil {
		t.Fatal(err)
	}
	second, err := announce("other")
	if err != nil {
		t.Fatal(err)
	}
	a, _ := tab.Get(first.ID())
	b, _ := tab.Get(second.ID())
	if !a.AwaitsContainer() || !b.AwaitsContainer() || a.Place.GPUs[0] == b.Place.GPUs[0] {
		t.Fatalf("the places are %v and %v", a.Place, b.Place)
	}
	_, err = announce("whole")
	refused(t, err, api.KindUnavailable, "cannot place a lease of red now")

	if !tab.ArrivedContainer(a.ID, "/gpushare/red/whole/libpod-1", "", []string{"container 1"}) {
		t.Error("the first container is not taken")
	}
	if tab.ArrivedContainer(a.ID, "/gpushare/red/whole/libpod-2", "", nil) {
		t.Error("a second container is taken for the same lease")
	}
	l, _, err := tab.Start(t.Context(), a.ID, Process{PID: 7, Start: 1})
	if err != nil || l.Cgroup != "/gpushare/red/whole/libpod-1" || l.Place.GPUs[0] != a.Place.GPUs[0] || l.AwaitsContainer() {
		t.Errorf("it started as %+v (%v)", l, err)
	}
	if tab.DropContainer(a.ID, "late", time.Time{}) {
		t.Error("a running lease is dropped")
	}
	if tab.DropContainer(b.ID, "late", epoch) || !tab.DropContainer(b.ID, "late", epoch.Add(time.Second)) {
		t.Error("the second is not dropped after its time, or before")
	}
	if _, err := announce("other"); err != nil {
		t.Errorf("its place is not free: %v", err)
	}
}
