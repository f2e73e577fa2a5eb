package server

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/request"
)

// reduce takes from the caller of a request the roles that it does not ask for: a program of root, as the driver of Kubernetes, needs
// only what an engine may, and a defect of it can then do no more.
func (s *Server) reduce(c *Call) *api.Error {
	role, refused := request.Role(c.R)
	if role == "" {
		return refused
	}
	p := *c.Caller.Peer
	p.AsEngine = true
	c.Caller = s.Identities.Caller(&p)
	return nil
}
