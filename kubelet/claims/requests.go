package claims

import (
	"context"
	"encoding/json"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/faultpoint"
)

// Requests are Leases whose requests are places where a test may kill the program: before each, and after its answer.
type Requests struct{ Leases }

func around[T any](f func() (T, error)) (T, error) {
	faultpoint.Hit("kubelet.request.begin")
	v, err := f()
	faultpoint.Hit("kubelet.request.answered")
	return v, err
}

// AttachEngine implements Leases.
func (r Requests) AttachEngine(ctx context.Context, q api.EngineRequest) (*api.LeaseGrant, error) {
	return around(func() (*api.LeaseGrant, error) { return r.Leases.AttachEngine(ctx, q) })
}

// EngineLease implements Leases.
func (r Requests) EngineLease(ctx context.Context, key string) (*api.Lease, error) {
	return around(func() (*api.Lease, error) { return r.Leases.EngineLease(ctx, key) })
}

// EngineDevice implements Leases.
func (r Requests) EngineDevice(ctx context.Context, key string) (json.RawMessage, error) {
	return around(func() (json.RawMessage, error) { return r.Leases.EngineDevice(ctx, key) })
}

// ReleaseEngine implements Leases.
func (r Requests) ReleaseEngine(ctx context.Context, key string) (string, error) {
	return around(func() (string, error) { return r.Leases.ReleaseEngine(ctx, key) })
}
