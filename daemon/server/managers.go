package server

import (
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/loop"
)

// Server answers requests on the socket.
type Server struct {
	*report.Reporter
	Tasks      *loop.Group
	Identities *Identities
	turns      turns
	Routes     []Route
}
