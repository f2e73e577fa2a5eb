package daemon

import (
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/faultpoint"
	"github.com/gpushare/gpushare/internal/rename"
)

// renamed gives what is in memory and in the run directory the names of a spec. It is called when the spec is accepted, and when the
// daemon starts: it may have ended in between, and what has the names already is not changed.
func (d *Daemon) renamed(recorded rename.List, want *state.Desired, accept func()) {
	report := func(err error) {
		if err != nil {
			d.Log.Error("cannot record the new names of frozen tenants", "error", err)
		}
	}
	faultpoint.Hit("rename.begin")
	report(d.enforcer.Tenants.Rename(recorded, want.Generation))
	faultpoint.Hit("rename.frozen")
	d.table.Rename(recorded, want.Generation, accept)
	faultpoint.Hit("rename.leases")
	report(d.enforcer.Tenants.Forget(recorded, want.Generation))
}
