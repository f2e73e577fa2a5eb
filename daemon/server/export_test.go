package server

import "github.com/gpushare/gpushare/api"

// Denied is the error of a route for a caller without its role.
func Denied(a Access, c *Caller, what string) *api.Error { return a.denied(c, what) }
