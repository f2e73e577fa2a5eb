package specs

import (
	"context"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/internal/spec"
)

// Specs are the spec in force and those before it.
type Specs struct {
	*report.Reporter
	State      *state.State
	Identities *server.Identities
	File       string // spec_file: the only source of the spec, with drop-ins next to it; empty: apply is
	// Renamed gives what is recorded of tenants and grants the names that the spec in force gives them, and calls accept in between:
	// it puts the spec in force. nil: nothing is recorded.
	Renamed func(recorded rename.List, want *state.Desired, accept func())
	// Apply applies a spec without any option. by is who requested it.
	Apply func(ctx context.Context, d *spec.Document, by string) (*api.ApplyResult, error)
}
