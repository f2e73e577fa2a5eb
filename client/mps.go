package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/gpushare/gpushare/api"
)

func mpsPath(gpu, what string) string { return "/v1/mps/" + url.PathEscape(gpu) + what }

// MPS reads the control daemon of one GPU, or of the MIG instance that "0:4" or the UUID of its device names.
func (c *Client) MPS(ctx context.Context, gpu string) (*api.MPSDetail, error) {
	out, err := get[api.MPSDetail](ctx, c, mpsPath(gpu, ""), nil)
	if err != nil {
		return nil, err
	}
	notNil(&out.ClientList)
	notNil(&out.Servers)
	notNil(&out.Rules)
	return out, nil
}

// MPSLog reads the last lines of the control daemon of a GPU and its servers.
func (c *Client) MPSLog(ctx context.Context, gpu string, lines int) (*api.MPSLog, error) {
	out, err := get[api.MPSLog](ctx, c, mpsPath(gpu, "/log"), url.Values{"lines": {strconv.Itoa(lines)}})
	if err != nil {
		return nil, err
	}
	notNil(&out.Lines)
	return out, nil
}

// MPSRestartOptions are the options of RestartMPS.
type MPSRestartOptions struct {
	Check bool // stop after the plan
	Force bool // terminate the clients
}

// RestartMPS restarts the control daemon of one GPU.
func (c *Client) RestartMPS(ctx context.Context, gpu string, o MPSRestartOptions) (*api.ApplyResult, error) {
	q := url.Values{}
	for name, on := range map[string]bool{"check": o.Check, "force": o.Force} {
		if on {
			q.Set(name, "1")
		}
	}
	out := new(api.ApplyResult)
	if err := c.Do(ctx, http.MethodPost, mpsPath(gpu, "/restart"), q, nil, nil, out); err != nil {
		return nil, err
	}
	notNil(&out.Plan.Steps)
	return out, nil
}

// DrainMPS closes the MPS of a GPU to new leases until ResumeMPS.
func (c *Client) DrainMPS(ctx context.Context, gpu string) (*api.MPSDrainResult, error) {
	return c.drain(ctx, gpu, "/drain")
}

// ResumeMPS ends DrainMPS.
func (c *Client) ResumeMPS(ctx context.Context, gpu string) (*api.MPSDrainResult, error) {
	return c.drain(ctx, gpu, "/resume")
}

func (c *Client) drain(ctx context.Context, gpu, what string) (*api.MPSDrainResult, error) {
	out := new(api.MPSDrainResult)
	if err := c.Do(ctx, http.MethodPost, mpsPath(gpu, what), nil, nil, nil, out); err != nil {
		return nil, err
	}
	notNil(&out.Leases)
	return out, nil
}
