package daemon

import (
	"time"

	"github.com/gpushare/gpushare/daemon/enforce"
	"github.com/gpushare/gpushare/daemon/escape"
	"github.com/gpushare/gpushare/daemon/metrics"
	mpsaccess "github.com/gpushare/gpushare/daemon/mps/access"
	"github.com/gpushare/gpushare/daemon/mps/bypass"
	"github.com/gpushare/gpushare/daemon/outside"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/descent"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/store"
)

// composeEscapes makes what finds processes outside of their leases, and those without MPS.
func (d *Daemon) composeEscapes(p *parts) {
	var units escape.UnitFinder // A nil adapter must stay a nil interface.
	if d.host.Sessions != nil {
		units = d.host.Sessions
	}
	d.escapes = &escape.Escapes{
		Reporter:       d.Reporter,
		State:          d.state,
		Driver:         d.driver,
		Observer:       d.observer,
		Port:           d.host.Port,
		Table:          d.table,
		Samples:        p.samples,
		Units:          units,
		WorkerPID:      p.workerPID,
		SampleInterval: p.sampleInterval,
		Attribution:    d.attribution,
		Changed:        func() { d.converger.PlacesChanged() },
		UserName:       d.identities.Names.UserName,
		Escaped:        escape.Escaped{Wake: loop.NewWake(), Since: time.Now()},
	}
	d.bypass = &bypass.Search{
		Reporter:       d.Reporter,
		State:          d.state,
		Driver:         d.driver,
		Observer:       d.observer,
		Table:          d.table,
		Samples:        p.samples,
		Attribution:    d.attribution,
		SampleInterval: p.sampleInterval,
		Changed:        func() { d.converger.PlacesChanged() },
		Clients:        d.controls,
		Stopper:        d.stopper,
	}
	d.outside = &outside.Watch{
		Reporter:    d.Reporter,
		Driver:      d.driver,
		Observer:    d.observer,
		Samples:     p.samples,
		Attribution: d.attribution,
		WorkerPID:   p.workerPID,
		UserOf:      outside.UserOf(d.identities.Names.UserName),
		Recorder:    d.account,
	}
	d.escapes.NoDescent = d.host.NoDescent
	if d.host.Former {
		d.escapes.FormerMounts = descent.FormerMounts
	}
	if d.host.Descent != nil { // A nil record must stay a nil interface.
		d.escapes.Descent, d.escapes.RecordBegins, d.escapes.NotKept = d.host.Descent, d.host.Descent.Begins, d.host.Descent.NotKept
		d.host.Descent.UserOf = func(id string) (uid int, ok bool) {
			l, ok := d.table.Get(id)
			return l.UID, ok
		}
	}
}

// composeQuotas makes what enforces the quotas.
func (d *Daemon) composeQuotas(p *parts) {
	d.enforcer = &enforce.Enforcer{
		Reporter:       d.Reporter,
		Recorder:       metrics.Recorder{Account: d.account, Totals: p.totals},
		State:          d.state,
		Driver:         d.driver,
		Observer:       d.observer,
		Table:          d.table,
		Samples:        p.samples,
		SampleInterval: p.sampleInterval,
		ReadingTime:    d.driver.ReadingTime,
		Attribution:    d.attribution,
		Stopper:        d.stopper,
		Leases:         d.leases,
		Wake:           loop.NewWake(),
		Shares:         enforce.Shares{GPUs: map[gpu.UUID]*enforce.Slicer{}},
		Tenants:        enforce.FrozenTenants{RunDir: store.RunDir(d.settings.RunDir), Wake: loop.NewWake()},
		Cooling:        enforce.Cooling{Wake: loop.NewWake()},
	}
	p.isolation.MayStart, p.isolation.Vacant = d.enforcer.MayStart, d.escapes.Vacant
}

// composeFreezer gives the freezer of leases to those who freeze, if this host has one.
func (d *Daemon) composeFreezer(p *parts) {
	if d.host.Freezer != nil { // A nil adapter must stay a nil interface.
		freezer := &mpsaccess.Freezer{
			Scopes:   d.host.Freezer,
			Lease:    d.table.Get,
			LeaseOf:  d.attribution.LeaseOf,
			Observed: d.observer.Last,
			MPS:      d.controls,
			Now:      time.Now,
		}
		d.stopper.Freezer, d.enforcer.Freezer, d.viewer.Freezer, p.access.Freezer = freezer, freezer, freezer, freezer
		d.enforcer.Jobs, d.viewer.JobFrozen = d.host.Freezer, d.host.Freezer.Frozen
	}
}
