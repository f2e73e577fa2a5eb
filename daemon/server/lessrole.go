package server

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
)

// reduce takes from the caller of a request the roles that it does not ask for: a program of root, as the driver of Kubernetes, needs
// only what an engine may, and a defect of it can then do no more.
func (s *Server) reduce(c *Call) *api.Error {
	switch role := c.R.Header.Values(api.RoleHeader); {
	case len(role) == 0:
		return nil
	case len(role) > 1 || role[0] != api.RoleEngine:
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot answer with role %q: a request may ask for %s alone", role, api.RoleEngine),
			Hint:    "leave the header " + api.RoleHeader + " out: the caller then has each of its roles",
		}
	}
	p := *c.Caller.Peer
	p.AsEngine = true
	c.Caller = s.Identities.Caller(&p)
	return nil
}
