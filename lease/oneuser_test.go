package lease

import (
	"testing"

	"github.com/gpushare/gpushare/api"
)

// An MPS control daemon without a server for all users has clients of one user at a time: the leases of another user wait, in
// the order of the queue, or are refused with the reason.
func TestOneUserAtATime(t *testing.T) {
	gpu := device(0, api.ModeMPS)
	gpu.OneUser = "its MPS, version 550.163.01, serves one user at a time"
	tab, _ := table(
		t, View{Generation: 1, GPUs: []GPUView{gpu}, Grants: []Grant{mps("vision", "a", 20, 1<<30), mps("speech", "b", 20, 1<<30)}},
	)
	place := func(uid int, tenant, grant string) {
		t.Helper()
		if _, err := as(tab, uid, "", tenant, grant, false); err != nil {
			t.Fatal(err)
		}
	}
	place(1001, "vision", "a")
	place(1001, "speech", "b")
	const why = "GPU 0 is used by another user, and its MPS, version 550.163.01, serves one user at a time"
	_, err := as(tab, 1002, "bob", "vision", "a", false)
	refused(t, err, api.KindUnavailable, why)
	_, err = as(tab, 0, "root", "vision", "a", false)
	refused(t, err, api.KindUnavailable, why)
	place(1001, "vision", "a")

	bob, err := as(tab, 1002, "bob", "vision", "a", true)
	if err != nil {
		t.Fatal(err)
	}
	if got := next(t, bob).Lease.Waiting; got != why {
		t.Errorf("bob waits because %q", got)
	}
	// The GPU is bob's next: the first user cannot keep it with new leases.
	_, err = as(tab, 1001, "alice", "vision", "a", false)
	refused(t, err, api.KindUnavailable, "GPU 0 is claimed by an earlier request")
	for i, l := range tab.Live() {
		if isPlaced(tab, bob) {
			t.Errorf("bob has a lease while %d of uid 1001 are left", 3-i)
		}
		if err := tab.Ended(t.Context(), l.ID, ""); err != nil {
			t.Fatal(err)
		}
	}
	if !isPlaced(tab, bob) {
		t.Error("bob still waits")
	}
	_, err = as(tab, 1001, "alice", "vision", "a", false)
	refused(t, err, api.KindUnavailable, "GPU 0 is used by another user")
}

// Without the rule users share the GPU.
func TestManyUsersOnMPS(t *testing.T) {
	tab, _ := table(t, View{Generation: 1, GPUs: []GPUView{device(0, api.ModeMPS)}, Grants: []Grant{mps("vision", "a", 20, 1<<30)}})
	for uid := 1001; uid < 1004; uid++ {
		if _, err := as(tab, uid, "", "vision", "a", false); err != nil {
			t.Error(err)
		}
	}
}
