package client

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/gpushare/gpushare/api"
)

// Pauses between two attempts to reach a daemon that went away, and how long to try without a wait of the request.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
	patience   = 15 * time.Second
)

// errLost means that the daemon accepted the request and went away before it answered.
var errLost = errors.New("the daemon went away")

// Lease requests a lease. It blocks until the calling process is isolated or, for a detached command, until that runs.
// Every line before the last goes to progress. ctx never ends a granted lease: a lease ends with its processes.
//
// If the daemon goes away meanwhile, the request is sent again until its wait is over. It keeps its position in the queue,
// or gets the lease that it already had. For a command that could not be run, the answer with its exit code is returned
// next to the error.
func (c *Client) Lease(ctx context.Context, r api.LeaseRequest, progress func(*api.LeaseGrant)) (*api.LeaseGrant, error) {
	if r.Key == "" {
		r.Key = rand.Text()
	}
	return c.leaseAfter(ctx, r, progress, func() (*api.LeaseGrant, error) { return c.lease(ctx, "/v1/leases", r, progress) })
}

// LeaseOn is Lease for a request that was sent on a connection, with the key of the request. It closes the connection.
func (c *Client) LeaseOn(
	ctx context.Context, conn net.Conn, r api.LeaseRequest, progress func(*api.LeaseGrant),
) (*api.LeaseGrant, error) {
	return c.leaseAfter(ctx, r, progress, func() (*api.LeaseGrant, error) {
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, errLost
		}
		defer res.Body.Close()
		if res.StatusCode >= 400 {
			return nil, refusal(res)
		}
		return leaseAnswer(ctx, res, progress)
	})
}

// leaseAfter repeats a request, as long as its wait, if the daemon goes away in the first attempt.
func (c *Client) leaseAfter(
	ctx context.Context, r api.LeaseRequest, progress func(*api.LeaseGrant), attempt func() (*api.LeaseGrant, error),
) (*api.LeaseGrant, error) {
	until := time.Now().Add(cmp.Or(c.Patience, patience))
	switch {
	case r.Wait != nil && *r.Wait == 0:
		until = time.Time{}
	case r.Wait != nil:
		until = time.Now().Add(time.Duration(*r.Wait))
	}
	pause, lost := firstPause, false
	for {
		g, err := attempt()
		attempt = func() (*api.LeaseGrant, error) { return c.lease(ctx, "/v1/leases", r, progress) }
		switch {
		case errors.Is(err, errLost):
			if !lost {
				progress(
					&api.LeaseGrant{Warnings: []string{"gpushared went away; it is asked again for the same place as soon as it is back"}},
				)
			}
			lost = true
		case !lost || !Unreached(err):
			return g, err
		}
		if !until.IsZero() && time.Until(until) <= 0 {
			return nil, &noAnswer{&api.Error{
				Kind:    api.KindUnavailable,
				Message: "gpushared went away while the lease was waited for, and did not come back in time",
				Hint:    "run the command again when it is back: 'systemctl status gpushared' shows whether it runs",
			}, true}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
		if r.Wait != nil && !until.IsZero() {
			left := api.Duration(max(time.Until(until), time.Millisecond))
			r.Wait = &left
		}
	}
}

// lease sends the request once.
func (c *Client) lease(ctx context.Context, path string, r any, progress func(*api.LeaseGrant)) (*api.LeaseGrant, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	res, err := c.send(ctx, http.MethodPost, path, nil, body, http.Header{"Content-Type": {"application/json"}})
	if n, ok := errors.AsType[*noAnswer](err); ok && n.onWay {
		return nil, errLost
	}
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return leaseAnswer(ctx, res, progress)
}

// leaseAnswer reads the lines of an answer until the last one.
func leaseAnswer(ctx context.Context, res *http.Response, progress func(*api.LeaseGrant)) (*api.LeaseGrant, error) {
	for d := json.NewDecoder(res.Body); ; {
		line := new(api.LeaseGrant)
		if err := d.Decode(line); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, errLost
		}
		switch {
		case line.Error != nil:
			return line, line.Error
		case line.Environment != nil, line.Lease != nil && (line.Lease.State == api.LeaseRunning || line.Lease.State == api.LeaseEnded):
			return line, nil // An environment that adds nothing is not sent.
		default:
			progress(line)
		}
	}
}
