package daemon

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/change"
	"github.com/gpushare/gpushare/daemon/converge"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/instances"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/specs"
	"github.com/gpushare/gpushare/daemon/unmanage"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
	"github.com/gpushare/gpushare/power"
)

// composeChanges makes what changes the node.
func (d *Daemon) composeChanges(p *parts) {
	d.specs = &specs.Specs{
		Reporter:   d.Reporter,
		State:      d.state,
		Identities: d.identities,
		File:       d.settings.SpecFile,
		Renamed:    d.renamed,
		Apply: func(ctx context.Context, doc *spec.Document, by string) (*api.ApplyResult, error) {
			return d.changes.ApplyDocument(ctx, doc, by)
		},
	}
	d.changes = &change.Changes{
		Reporter: d.Reporter,
		Settings: change.Settings{
			HostRoot:      d.settings.HostRoot,
			Host:          hostname(),
			AnswerTimeout: time.Duration(d.settings.DriverReadTimeout), ChangeTimeout: time.Duration(d.settings.DriverChangeTimeout),
		},
		State:       d.state,
		Specs:       d.specs,
		Tasks:       d.tasks,
		Driver:      d.driver,
		Observer:    d.observer,
		Engine:      p.engine,
		Table:       d.table,
		Services:    d.host.Services,
		Identities:  d.identities,
		Attribution: d.attribution,
		Policy:      d.policy,
		Stopper:     d.stopper,
		Leases:      d.leases,
		Wake:        d.wakeConverge,
		Idle:        func() { d.instances.Due.Set() },
	}
	d.instances = &instances.Instances{
		Reporter:    d.Reporter,
		State:       d.state,
		Tasks:       d.tasks,
		Observer:    d.observer,
		Table:       d.table,
		Attribution: d.attribution,
		Policy:      d.policy,
		Changes:     d.changes,
		Refresh:     func(ctx context.Context, node *observe.Node) { d.converger.Refresh(ctx, node) },
		Wake:        d.wakeConverge,
		Due:         loop.NewWake(),
	}
}

// composeConverge makes the converge loop.
func (d *Daemon) composeConverge(p *parts) {
	d.converger = &converge.Converger{
		Reporter:         d.Reporter,
		State:            d.state,
		Driver:           d.driver,
		Observer:         d.observer,
		Engine:           p.engine,
		Port:             d.host.Port,
		Table:            d.table,
		Notify:           answering{d.notify, func(ctx context.Context) error { return server.Answers(ctx, d.settings.Socket) }},
		Logins:           d.host.LoginFilter,
		ConvergeInterval: func() time.Duration { return d.live.tuning.Load().Converge },
		Signal:           p.convergeWake,
		Wake:             d.wakeConverge,
		SuspectMPS:       d.controls.Suspect,
		ThawReady:        p.ready,
		Identities:       d.identities,
		Attribution:      d.attribution,
		Policy:           d.policy,
		Changes:          d.changes,
		MemoryLimits:     p.memory,
	}
}

// composeUnmanaging makes what ends the management, and connects the changes with the loop.
func (d *Daemon) composeUnmanaging(p *parts) {
	d.unmanaging = &unmanage.Unmanaging{
		Reporter:    d.Reporter,
		CDIDir:      d.settings.CDIDir,
		NodeName:    d.changes.Settings.NodeName(),
		State:       d.state,
		Tasks:       d.tasks,
		Port:        d.host.Port,
		Observer:    d.observer,
		Table:       d.table,
		Logins:      d.host.LoginFilter,
		Attribution: d.attribution,
		Policy:      d.policy,
		Power:       p.caps,
		Changes:     d.changes,
		Memory:      p.memory,
		Adopter:     d.adopter,
	}
	d.changes.Unmanage, d.converger.Unmanage = d.unmanaging, d.unmanaging
	d.changes.Converger, d.changes.Memory, d.changes.Power, d.converger.Power = d.converger, p.memory, p.caps, p.caps
}

// handlers are what carries out each kind of step.
func (d *Daemon) handlers(p *parts) engine.Handlers {
	migHandler := &mig.Handler{Driver: d.driver, InUseBy: d.attribution.DeviceUsers}
	isolationHandler := &isolation.Handler{Slices: d.host.Port}
	runsMPS := &control.Handler{Supervisor: d.controls, Driver: d.driver}
	return engine.Handlers{
		mig.KindMode:              migHandler,
		mig.KindCreate:            migHandler,
		mig.KindDestroy:           migHandler,
		mig.KindCompare:           &mig.CompareHandler{Driver: d.driver, Report: d.reportProfiles},
		isolation.KindSet:         isolationHandler,
		isolation.KindRemove:      isolationHandler,
		isolation.KindLoginFilter: &isolation.LoginFilterHandler{Host: d.host.LoginFilter},
		mps.KindStart:             runsMPS,
		mps.KindStop:              runsMPS,
		mps.KindRestart:           control.RestartHandler{Handler: runsMPS},
		planner.KindComputeMode:   change.ComputeMode{Driver: d.driver},
		planner.KindLeaseStop:     change.LeaseStop{D: d.changes},
		planner.KindLeaseRelease:  change.LeaseStop{D: d.changes},
		planner.KindProcessStop:   change.ProcessStop{Stopper: d.stopper},
		planner.KindUnitStop:      change.QuiesceUnit{D: d.changes},
		planner.KindUnitStart:     change.QuiesceUnit{D: d.changes},
		planner.KindCDIRemove:     unmanage.Step{U: d.unmanaging},
		planner.KindLoginLimits:   unmanage.Step{U: d.unmanaging},
		planner.KindMemoryLimits:  unmanage.Step{U: d.unmanaging},
		planner.KindMigration:     devicepolicy.MigrationPolicy{Port: d.host.Port},
		power.KindLimit:           power.Handler{Caps: p.caps},
	}
}
