package client

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/gpushare/gpushare/api"
)

const maintenancePath = "/v1/maintenance"

// Maintenance reads who took the node out of service, and what is in the way.
func (c *Client) Maintenance(ctx context.Context) (*api.MaintenanceResult, error) {
	out, err := get[api.MaintenanceResult](ctx, c, maintenancePath, nil)
	if err != nil {
		return nil, err
	}
	notNil(&out.Leases)
	return out, nil
}

// BeginMaintenance closes the node to new leases until EndMaintenance.
func (c *Client) BeginMaintenance(ctx context.Context, r api.MaintenanceRequest) (*api.MaintenanceResult, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return c.maintain(ctx, "", body)
}

// EndMaintenance ends BeginMaintenance.
func (c *Client) EndMaintenance(ctx context.Context) (*api.MaintenanceResult, error) {
	return c.maintain(ctx, "/off", nil)
}

func (c *Client) maintain(ctx context.Context, what string, body []byte) (*api.MaintenanceResult, error) {
	out := new(api.MaintenanceResult)
	if err := c.Do(ctx, http.MethodPost, maintenancePath+what, nil, body, nil, out); err != nil {
		return nil, err
	}
	notNil(&out.Leases)
	return out, nil
}
