// Package leasetest creates lease tables with one lease for the tests of other packages.
package leasetest

import (
	"context"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// NoIsolation isolates nothing.
type NoIsolation struct{}

// Isolate does nothing.
func (NoIsolation) Isolate(context.Context, lease.Lease, lease.Process) (lease.IsolationResult, error) {
	return lease.IsolationResult{}, nil
}

// RemoveIsolation does nothing.
func (NoIsolation) RemoveIsolation(context.Context, lease.Lease) error { return nil }

// TableWith returns a table with one running lease of one grant.
func TableWith(t *testing.T, tenant, grant string, uid int) *lease.Table {
	t.Helper()
	return TableOf(t, lease.Config{Isolation: NoIsolation{}, Now: func() time.Time { return time.Unix(1000, 0) }}, tenant, grant, uid)
}

// TableOf returns a table of that configuration with one lease of a time-sliced GPU.
func TableOf(t *testing.T, c lease.Config, tenant, grant string, uid int) *lease.Table {
	t.Helper()
	tab := lease.New(c)
	tab.Update(lease.View{
		Generation: 1, GPUs: []lease.GPUView{{UUID: "GPU-1", Mode: api.ModeTimeslice, Capacity: 1 << 30}},
		Grants: []lease.Grant{{Tenant: tenant, Spec: api.GrantSpec{Name: grant, Timeslice: &api.ShareSpec{Share: 50}}}},
	})
	ticket, err := tab.Submit(lease.Request{Tenant: tenant, Member: []string{tenant}, UID: uid, User: "user", Command: []string{"command"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tab.Start(t.Context(), ticket.ID(), lease.Process{PID: 1 << 30, Start: 1}); err != nil {
		t.Fatal(err)
	}
	return tab
}
