package leases

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/launch"
)

// mostNames is how many GPUs a request may name.
const mostNames = 64

// decodeRequest reads the body of POST /v1/leases.
func decodeRequest(c *server.Call) (*api.LeaseRequest, error) {
	q, err := server.Decode[api.LeaseRequest](c)
	if err != nil {
		return nil, err
	}
	switch {
	case len(q.Command) == 0:
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot start a lease: the request names no command"}
	case len(q.Key) > 64:
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot use a key of more than 64 bytes"}
	}
	return q, placeable("start", q.GPUs, q.MaxTime)
}

// placeable refuses what no lease can have, however it begins: what is its verb.
func placeable(what string, gpus []string, limit *api.Duration) error {
	switch {
	case limit != nil && *limit <= 0:
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "cannot " + what + " a lease for a max_time of 0",
			Hint:    "leave it out: then the lease has the time of its grant",
		}
	case len(gpus) > mostNames:
		return &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot place a lease on more than %d named GPUs", mostNames)}
	}
	return nil
}

// programOf returns the program to start, with the credentials of the caller as the kernel reports them.
func programOf(q *api.LeaseRequest, c *server.Caller) (*launch.Program, error) {
	p := &launch.Program{Path: q.Detach.Path, Argv: q.Command, Env: q.Detach.Environment, Dir: q.Detach.Dir, UMask: q.Detach.UMask}
	if err := p.Check(); err != nil {
		return nil, &api.Error{Kind: api.KindInvalid, Message: err.Error()}
	}
	var err error
	if p.Credentials, err = launch.CredentialsOf(launch.Process(c.Process), c.UID); err != nil {
		return nil, &api.Error{
			Kind:    api.KindDenied,
			Message: err.Error(),
			Hint:    "run it where the daemon runs, not inside a container, and as one user",
		}
	}
	p.Credentials.UID, p.Credentials.GID, p.Credentials.Groups = c.UID, c.GID, c.Groups
	return p, nil
}
