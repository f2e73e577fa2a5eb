package lease

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gib = 1 << 30

func bytesOf(n uint64) *api.Bytes { b := api.Bytes(n); return &b }

func timeslice(tenant, name string, share float64, memory uint64) Grant {
	return Grant{
		Tenant: tenant,
		Spec:   api.GrantSpec{Name: name, Timeslice: &api.ShareSpec{Share: api.Percent(share), GPUMemory: bytesOf(memory)}},
	}
}

func mps(tenant, name string, share float64, memory uint64) Grant {
	return Grant{
		Tenant: tenant,
		Spec:   api.GrantSpec{Name: name, MPS: &api.ShareSpec{Share: api.Percent(share), GPUMemory: bytesOf(memory)}},
	}
}

func exclusive(tenant, name string, n int) Grant {
	return Grant{Tenant: tenant, Spec: api.GrantSpec{Name: name, Exclusive: n}}
}

func mig(tenant, name, profile string) Grant {
	return Grant{Tenant: tenant, Spec: api.GrantSpec{Name: name, MIG: profile}}
}

// with returns a changed copy of a grant.
func with(g Grant, f func(*Grant)) Grant { f(&g); return g }

func device(index int, mode string) GPUView {
	return GPUView{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", index)), Index: index, Mode: mode, Capacity: 40 * gib, Reserve: gib}
}

func instance(g int, name string, slices, start, size uint32, memory uint64, attributes ...string) InstanceView {
	return InstanceView{
		ProfileView: ProfileView{Name: name, Slices: slices, Memory: memory, Attributes: attributes},
		Placement:   gpu.Placement{Start: start, Size: size},
		UUIDs:       []gpu.UUID{gpu.UUID(fmt.Sprintf("MIG-%d-%d", g, start))},
	}
}

// partitioned is an A100-40 with the layout 3g, 2g, 1g, 1g.
func partitioned(index int) GPUView {
	d := device(index, api.ModeMIG)
	d.Instances = []InstanceView{
		instance(index, "2g.10gb", 2, 0, 2, 10*gib), instance(index, "1g.5gb", 1, 2, 1, 5*gib),
		instance(index, "1g.5gb", 1, 3, 1, 5*gib), instance(index, "3g.20gb", 3, 4, 4, 20*gib),
	}
	return d
}

// fakeIsolation counts its calls, and fails on request.
type fakeIsolation struct {
	mu         sync.Mutex
	isolated   map[string]bool
	isolateErr error
	removeErr  error
	onIsolate  func(Lease) // called without the lock
	removed    int
}

func (w *fakeIsolation) Isolate(_ context.Context, l Lease, _ Process) (IsolationResult, error) {
	if w.onIsolate != nil {
		w.onIsolate(l)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isolateErr != nil {
		return IsolationResult{}, w.isolateErr
	}
	if w.isolated == nil {
		w.isolated = map[string]bool{}
	}
	if w.isolated[l.ID] {
		return IsolationResult{}, fmt.Errorf("%s is isolated twice", l.ID)
	}
	w.isolated[l.ID] = true
	return IsolationResult{Status: api.IsolationStatus{Cgroup: "/" + l.ID}, Environment: map[string]string{"GPUSHARE_LEASE": l.ID}}, nil
}

func (w *fakeIsolation) RemoveIsolation(_ context.Context, l Lease) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.removeErr != nil {
		return w.removeErr
	}
	w.removed++
	delete(w.isolated, l.ID)
	return nil
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// table returns a table with this view; its clock does not advance.
func table(t *testing.T, v View) (*Table, *fakeIsolation) {
	t.Helper()
	w := &fakeIsolation{}
	tab := New(Config{Isolation: w, Now: func() time.Time { return epoch }})
	tab.Update(v)
	return tab, w
}

// submit submits without waiting.
func submit(tab *Table, tenant, grant string) (*Ticket, error) {
	return tab.Submit(Request{Tenant: tenant, Grant: grant, Admin: true})
}

// mustSubmit submits without waiting and returns the placed lease.
func mustSubmit(t *testing.T, tab *Table, tenant, grant string) (*Ticket, Lease) {
	t.Helper()
	k, err := submit(tab, tenant, grant)
	if err != nil {
		t.Fatalf("%s/%s: %v", tenant, grant, err)
	}
	l, ok := tab.Get(k.ID())
	if !ok {
		t.Fatalf("%s is not in the table", k.ID())
	}
	return k, l
}

// queue submits and waits for as long as it takes.
func queue(t *testing.T, tab *Table, tenant, grant string) *Ticket {
	t.Helper()
	var forever time.Duration
	k, err := tab.Submit(Request{Tenant: tenant, Grant: grant, Admin: true, Wait: &forever})
	if err != nil {
		t.Fatalf("%s/%s: %v", tenant, grant, err)
	}
	return k
}

// next returns the ticket's next update, which must be there already.
func next(t *testing.T, k *Ticket) Update {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	u, err := k.Next(ctx)
	if err != nil {
		t.Fatalf("%s: %v", k.ID(), err)
	}
	return u
}

func isPlaced(tab *Table, k *Ticket) bool {
	_, ok := tab.Get(k.ID())
	return ok
}

// queueForever is the Wait of a request that waits for as long as it takes.
func queueForever() *time.Duration { return new(time.Duration) }
