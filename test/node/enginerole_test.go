package node

import (
	"errors"
	"net/http"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
)

// A request of root with the role engine may do what an engine may, and nothing else.
func TestRootWithTheRoleEngine(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, engineSpec)
	c := n.Client()
	c.Role = api.RoleEngine
	defer c.Close()
	ctx := soon(t)
	lease := func() error {
		_, err := c.AttachEngine(ctx, api.EngineRequest{Key: "kubernetes:1", Tenant: "red", Grant: "whole", Keep: true})
		return err
	}
	cases := []struct {
		what string
		may  bool
		do   func() error
	}{
		{"status", true, func() error {
			s, err := c.Status(ctx)
			if err == nil && (len(s.Tenants) != 1 || len(s.GPUs) != len(status(t, n).GPUs)) {
				err = errors.New("it has neither all tenants nor all GPUs")
			}
			return err
		}},
		{"spec", true, func() error { _, err := c.Spec(ctx); return err }},
		{"mig", true, func() error { _, err := c.MIG(ctx); return err }},
		{"a keyed lease", true, lease},
		{"the devices of a keyed lease", true, func() error { _, err := c.EngineDevice(ctx, "kubernetes:1"); return err }},
		{"events", true, func() error { return c.EventsBetween(ctx, "", "", func(api.Event) {}) }},
		{"the release of a keyed lease", true, func() error { _, err := c.ReleaseEngine(ctx, "kubernetes:1"); return err }},
		{"the audit", false, func() error { return c.Audit(ctx, client.AuditFilter{}, func(api.AuditLine) {}) }},
		{"a cordon", false, func() error { _, err := c.CordonGPU(ctx, "3", ""); return err }},
		{"a reload", false, func() error { return c.Reload(ctx) }},
		{"the stop of a lease", false, func() error { return c.StopLease(ctx, "red-whole-1234") }},
		{"the attachment of a process", false, func() error {
			_, err := c.Attach(ctx, api.AttachRequest{Tenant: "red", Grant: "whole", PID: 1}, nil)
			return err
		}},
	}
	for _, x := range cases {
		err := x.do()
		e, refused := errors.AsType[*api.Error](err)
		if x.may && err != nil || !x.may && (!refused || e.Kind != api.KindDenied) {
			t.Errorf("%s: %v", x.what, err)
		}
	}
	err := n.Client().Do(ctx, http.MethodGet, "/v1/status", nil, nil, http.Header{api.RoleHeader: {"admin"}}, nil)
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != api.KindInvalid {
		t.Errorf("a request with another role: %v", err)
	}
	// Without the header the same user is an administrator.
	if r := n.CLI(ctx, "audit"); r.Code != 0 {
		t.Error(r.Err)
	}
}
