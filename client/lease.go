package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gpushare/gpushare/api"
)

// Pauses between two attempts to reach a daemon that went away, and how long that is tried for who does not wait anyway.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
	patience   = 15 * time.Second
)

// errLost means that the daemon took the request and went away before it answered.
var errLost = errors.New("the daemon went away")

// Lease asks for a lease and blocks until its command runs or, for the process that asks, until that is walled in. Every
// line before the last goes to progress. A lease that was granted is never given back by ctx: it ends with its processes.
//
// When the daemon goes away meanwhile, it is asked again until the request's wait is over: whoever waited keeps his place,
// and who had his lease gets it. A command that could not be run is an error with the answer's exit code beside it.
func (c *Client) Lease(ctx context.Context, r api.LeaseRequest, progress func(*api.LeaseGrant)) (*api.LeaseGrant, error) {
	if r.Key == "" {
		r.Key = rand.Text()
	}
	until := time.Now().Add(cmp.Or(c.Patience, patience))
	switch {
	case r.Wait != nil && *r.Wait == 0:
		until = time.Time{}
	case r.Wait != nil:
		until = time.Now().Add(time.Duration(*r.Wait))
	}
	pause, lost := firstPause, false
	for {
		g, err := c.lease(ctx, "/v1/leases", r, progress)
		switch {
		case errors.Is(err, errLost):
			if !lost {
				progress(&api.LeaseGrant{Warnings: []string{"gpushared went away; it is asked again for the same place as soon as it is back"}})
			}
			lost = true
		case !lost || !unreached(err):
			return g, err
		}
		if !until.IsZero() && time.Until(until) <= 0 {
			return nil, &api.Error{Kind: api.KindUnavailable, Message: "gpushared went away while the lease was waited for, and did not come back in time", Hint: "run the command again when it is back"}
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

// unreached tells an answer from none.
func unreached(err error) bool {
	_, ok := errors.AsType[*noAnswer](err)
	return ok
}

// lease asks once.
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
