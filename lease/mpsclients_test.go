package lease

import (
	"testing"

	"github.com/gpushare/gpushare/api"
)

// clientsOn is a GPU in MPS mode whose server has at most so many clients.
func clientsOn(most int, clients map[string]int) View {
	gpu := device(0, api.ModeMPS)
	gpu.MaxClients, gpu.Clients = most, clients
	return View{Generation: 1, GPUs: []GPUView{gpu}, Grants: []Grant{mps("vision", "a", 20, 1<<30), mps("speech", "b", 20, 1<<30)}}
}

// A lease counts as the clients that it has, and as one without any. A further lease waits, or is refused with the number.
func TestClientsAreCounted(t *testing.T) {
	const why = "GPU 0's MPS has 4 of 4 clients"
	for _, c := range []struct {
		name    string
		most    int
		clients func(first string) map[string]int // after the first lease has begun
		refused string                            // of a second lease; empty: it is placed
	}{
		{"each lease is one", 2, func(string) map[string]int { return nil }, ""},
		{"the first lease has the only one", 1, func(string) map[string]int { return nil }, "GPU 0's MPS has 1 of 1 clients"},
		{"one left", 4, func(first string) map[string]int { return map[string]int{first: 3} }, ""},
		{"the first lease has all", 4, func(first string) map[string]int { return map[string]int{first: 4} }, why},
		{"clients of no lease", 4, func(first string) map[string]int { return map[string]int{first: 1, "": 3} }, why},
		{"clients of no lease, and a lease without one", 4, func(string) map[string]int { return map[string]int{"": 3} }, why},
		{"clients of a lease that has ended", 4, func(string) map[string]int { return map[string]int{"gone": 4} }, ""},
		{"no limit is known", 0, func(first string) map[string]int { return map[string]int{first: 400} }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab, _ := table(t, clientsOn(c.most, nil))
			first, err := submit(tab, "vision", "a")
			if err != nil {
				t.Fatal(err)
			}
			tab.Update(clientsOn(c.most, c.clients(first.ID())))
			if _, err = submit(tab, "speech", "b"); c.refused != "" {
				refused(t, err, api.KindUnavailable, c.refused)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// A request that waits for a client is placed when a lease ends, and when clients of a lease end.
func TestWaitForClients(t *testing.T) {
	for _, c := range []struct {
		name string
		free func(t *testing.T, tab *Table, first string)
	}{
		{"the lease ends", func(t *testing.T, tab *Table, first string) {
			if err := tab.Ended(t.Context(), first, ""); err != nil {
				t.Fatal(err)
			}
		}},
		{"a client ends", func(_ *testing.T, tab *Table, first string) { tab.Update(clientsOn(4, map[string]int{first: 3})) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab, _ := table(t, clientsOn(4, nil))
			first, err := submit(tab, "vision", "a")
			if err != nil {
				t.Fatal(err)
			}
			tab.Update(clientsOn(4, map[string]int{first.ID(): 4}))
			second, err := as(tab, 1002, "bob", "speech", "b", true)
			if err != nil {
				t.Fatal(err)
			}
			if got := next(t, second).Lease.Waiting; got != "GPU 0's MPS has 4 of 4 clients" {
				t.Errorf("it waits because %q", got)
			}
			if c.free(t, tab, first.ID()); !isPlaced(tab, second) {
				t.Error("it still waits")
			}
		})
	}
}

// A reserved grant without a lease keeps a client free for itself.
func TestReservedGrantKeepsAClient(t *testing.T) {
	v := clientsOn(2, nil)
	v.Grants[1].Spec.Reserved = true
	tab, _ := table(t, v)
	if _, err := submit(tab, "vision", "a"); err != nil {
		t.Fatal(err)
	}
	_, err := submit(tab, "vision", "a")
	refused(t, err, api.KindUnavailable, "GPU 0's MPS has 1 of 2 clients, and keeps 1 for reserved grants")
	if _, err := submit(tab, "speech", "b"); err != nil {
		t.Error(err)
	}
}
