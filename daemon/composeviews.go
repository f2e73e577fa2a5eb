package daemon

import (
	"github.com/gpushare/gpushare/daemon/metrics"
	"github.com/gpushare/gpushare/daemon/status"
	"github.com/gpushare/gpushare/internal/loop"
)

// composeViews makes the status.
func (d *Daemon) composeViews(p *parts) {
	var unitState status.UnitState
	if d.host.Services != nil {
		unitState = d.host.Services
	}
	d.viewer = &status.Viewer{
		Reporter:     d.Reporter,
		StateDir:     d.settings.StateDir,
		HostRoot:     d.settings.HostRoot,
		Host:         hostname(),
		State:        d.state,
		Driver:       d.driver,
		Observer:     d.observer,
		Port:         d.host.Port,
		Table:        d.table,
		Samples:      p.samples,
		Identities:   d.identities,
		Logins:       d.host.LoginFilter,
		LimitsLogins: d.host.Sessions != nil,
		Services:     unitState,
		FreezerReady: p.ready,
		Unconfined:   d.unconfined,
		Files:        d.files,
		Attribution:  d.attribution,
		Policy:       d.policy,
		Power:        d.changes.Power,
		MPS:          d.controls,
		Managers: status.Managers{
			Acknowledge: d.acknowledged,
			Account:     d.account,
			Adoption:    d.adopter,
			Converge:    d.converger,
			Instances:   d.instances,
			Enforce:     d.enforcer,
			Memory:      p.memory,
			Leases:      d.leases,
			Health:      d.health,
			Outside:     d.outsideUses,
			InstanceUse: d.instanceUse,
		},
	}
}

// outsideUses is who uses GPUs outside of leases, as the status shows it.
func (d *Daemon) outsideUses() []status.OutsideUse {
	uses := d.outside.Uses()
	out := make([]status.OutsideUse, len(uses))
	for i := range uses {
		out[i] = status.OutsideUse(uses[i])
	}
	return out
}

// composeMetrics makes the status as metrics.
func (d *Daemon) composeMetrics(p *parts) {
	d.metrics = &metrics.Exporter{Reporter: d.Reporter, Status: d.viewer, Worker: d.driver, Totals: p.totals}
	d.jobs = &metrics.JobFiles{Reporter: d.Reporter, Dir: d.settings.JobFilesDir, Status: d.viewer, Wake: loop.NewWake()}
	if d.settings.MetricsAddress != "" {
		d.network = &metrics.Network{Exporter: d.metrics, Address: d.settings.MetricsAddress, WebConfig: d.settings.MetricsWebConfig}
	}
}
