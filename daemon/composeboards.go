package daemon

import (
	"github.com/gpushare/gpushare/daemon/acknowledge"
	"github.com/gpushare/gpushare/daemon/health"
	"github.com/gpushare/gpushare/daemon/instanceuse"
	"github.com/gpushare/gpushare/daemon/maintenance"
	mpsaccess "github.com/gpushare/gpushare/daemon/mps/access"
	mpsfault "github.com/gpushare/gpushare/daemon/mps/fault"
	"github.com/gpushare/gpushare/internal/kernel/kernellog"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/store"
)

// composeMPS makes what looks after the clients of MPS.
func (d *Daemon) composeMPS(p *parts) {
	p.access = &mpsaccess.Access{
		Reporter:    d.Reporter,
		State:       d.state,
		Observer:    d.observer,
		Table:       d.table,
		Identities:  d.identities,
		Attribution: d.attribution,
		MPS:         d.controls,
		Wake:        d.wakeConverge,
	}
	d.converger.MPSAccess = p.access
	d.converger.MPSFaults = &mpsfault.Faults{
		Reporter: d.Reporter,
		State:    d.state,
		Observed: d.observer.Last,
		Lease:    d.table.Get,
		LeaseOf:  d.attribution.LeaseOf,
		Leases:   d.leases,
		Stopper:  d.stopper,
		Wake:     d.wakeConverge,
	}
}

// composeHealth makes what looks after the boards.
func (d *Daemon) composeHealth() {
	d.kernelLog = &kernellog.Log{HostRoot: d.settings.HostRoot}
	d.health = &health.Health{
		Reporter:    d.Reporter,
		State:       d.state,
		Observed:    d.observer.Last,
		Driver:      d.driver,
		Lease:       d.table.Get,
		Live:        d.table.Live,
		EndedLately: d.leases.EndedLately,
		Leases:      d.leases,
		LeaseLookup: d.attribution.LeaseLookup,
		Wake:        d.wakeConverge,
		Heated:      d.enforcer.Cooling.Wake.Set,
		Admit:       func() { d.converger.UpdateTable(d.observer.Last()) },
		FollowLog:   d.kernelLog.Follow,
		StateDir:    store.RunDir(d.settings.StateDir),
		Due:         loop.NewWake(),
		Arrived:     loop.NewWake(),
	}
	d.instanceUse = &instanceuse.Watch{
		Reporter:    d.Reporter,
		Driver:      d.driver,
		Observed:    d.observer.Last,
		Live:        d.table.Live,
		EndedLately: d.leases.EndedLately,
		LeaseLookup: d.attribution.LeaseLookup,
		Recorder:    d.account,
	}
	d.converger.Health, d.changes.Health, d.enforcer.Cooling.Heat = d.health, d.health, d.health.Heat
}

// composeMaintenance makes what administrators ask for, or ask for later.
func (d *Daemon) composeMaintenance() {
	d.maintenance = &maintenance.Maintenance{
		Reporter:  d.Reporter,
		State:     d.state,
		Observer:  d.observer,
		Table:     d.table,
		Driver:    d.driver,
		Changes:   d.changes,
		Converger: d.converger,
		Users:     d.attribution,
		UserName:  d.identities.Names.UserName,
		Wake:      loop.NewWake(),
	}
	d.acknowledged = &acknowledge.Acknowledgements{
		Reporter: d.Reporter,
		State:    d.state,
		Began:    d.Now(),
		Wake:     loop.NewWake(),
	}
}
