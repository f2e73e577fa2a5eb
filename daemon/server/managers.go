package server

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/loop"
)

// Identities knows who is who on this host: names, roles, and members of tenants.
type Identities struct {
	*report.Reporter
	Spec    func() *api.Spec // in force; nil: none is
	Tasks   *loop.Group
	Rosters *Rosters
	Changed func() // who is a member of what may be different
}

// Server answers requests on the socket.
type Server struct {
	*report.Reporter
	Tasks   *loop.Group
	Rosters *Rosters
	turns   turns
	Named   func() // somebody came whose name is not known
	Routes  []Route
}
