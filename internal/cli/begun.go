package cli

import (
	"context"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/enter"
)

// begunRequest is a request that package enter sent before it left the run to the command line.
type begunRequest struct {
	conn net.Conn
	key  string
}

// takeBegun takes the request that was begun, and what says so, out of the environment: no command inherits it.
func (a *app) takeBegun() {
	at := slices.IndexFunc(a.env, func(kv string) bool { return strings.HasPrefix(kv, enter.BegunVariable+"=") })
	if at < 0 {
		return
	}
	_, value, _ := strings.Cut(a.env[at], "=")
	a.env = slices.Delete(slices.Clone(a.env), at, at+1)
	number, key, _ := strings.Cut(value, ":")
	fd, err := strconv.ParseUint(number, 10, 31)
	if err != nil || fd < 3 || key == "" {
		return
	}
	f := os.NewFile(uintptr(fd), "request")
	defer f.Close() // A user's own variable names no connection, and the request is sent then.
	if conn, err := net.FileConn(f); err == nil {
		a.begun = &begunRequest{conn, key}
	}
}

// requested requests a lease, or continues the request that was begun.
func (a *app) requested(ctx context.Context, r api.LeaseRequest) (*api.LeaseGrant, error) {
	if b := a.begun; b != nil {
		a.begun, r.Key = nil, b.key
		return a.client.LeaseOn(ctx, b.conn, r, a.waiting())
	}
	return a.client.Lease(ctx, r, a.waiting())
}
