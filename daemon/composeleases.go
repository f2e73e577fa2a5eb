package daemon

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/adoption"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/engines"
	"github.com/gpushare/gpushare/daemon/leases"
	"github.com/gpushare/gpushare/daemon/memorylimit"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// composeTable makes the table of leases.
func (d *Daemon) composeTable(p *parts) {
	d.table = lease.New(lease.Config{
		Isolation: p.isolation, Capacity: planner.Capacity{},
		Save:            func(ctx context.Context, state []byte) error { return d.leases.SaveLeases(ctx, state) },
		Noticed:         func(l lease.Lease, n lease.Notice) { d.leases.Noticed(l, n) },
		Changed:         func(l lease.Lease) { d.leaseChanged(l) },
		InstancePending: func() { d.instances.Due.Set() },
		Preempted:       func() { d.leases.TimeWake.Set() },
		MemoryUse:       p.samples.MemoryUse,
	})
}

// composeShared makes what every manager uses.
func (d *Daemon) composeShared(p *parts) {
	d.server = &server.Server{Reporter: d.Reporter, Tasks: d.tasks, Identities: d.identities}
	d.attribution = &attribution.Attribution{
		Reporter:     d.Reporter,
		HostRoot:     d.settings.HostRoot,
		State:        d.state,
		Port:         d.host.Port,
		Follow:       d.host.Follow,
		Attachments:  d.host.Attachments,
		WorkerPID:    p.workerPID,
		Observer:     d.observer,
		Table:        d.table,
		CanStopUnits: d.host.Services != nil,
		Hosts:        p.hosts,
	}
	d.policy = &devicepolicy.Policy{
		Reporter: d.Reporter,
		HostRoot: d.settings.HostRoot,
		CDIDir:   d.settings.CDIDir,
		State:    d.state,
		Port:     d.host.Port,
		Observer: d.observer,
		Table:    d.table,
		Logins:   d.host.LoginFilter,
		MPS:      d.controls,
		Hosts:    p.hosts,
		SliceUse: d.attribution.SliceUse,
		CDI:      devicepolicy.CDI{Wake: loop.NewWake()},
		Units:    p.unitWake,
		Helper:   d.host.Helper,
		Changed:  func() { d.converger.NodesChanged() },
	}
	d.stopper = &stop.Stopper{
		Reporter:     d.Reporter,
		Driver:       d.driver,
		Table:        d.table,
		Attribution:  d.attribution,
		LeaseChanges: p.leaseChanges,
		Tasks:        d.tasks,
	}
	var hierarchy *cgroup.Hierarchy
	if d.host.Port.Info().Slices {
		hierarchy = d.host.Port.Abilities().Hierarchy
	}
	p.memory = &memorylimit.Limits{
		Reporter: d.Reporter, State: d.state, Driver: d.driver, Observer: d.observer, Table: d.table, Hierarchy: hierarchy,
		Overuse:   func(l *lease.Lease) quota.OverusePolicy { return d.enforcer.Overuse(l) },
		CanFreeze: d.host.Freezer != nil && d.host.Port.Info().Freeze,
	}
}

// composeLeases makes what starts and ends leases, and their account.
func (d *Daemon) composeLeases(p *parts) {
	d.leases = &leases.Leases{
		Reporter:     d.Reporter,
		State:        d.state,
		RunDir:       store.RunDir(d.settings.RunDir),
		Tasks:        d.tasks,
		WorkerPID:    p.workerPID,
		Observer:     d.observer,
		Port:         d.host.Port,
		Follow:       d.host.Follow,
		Attachments:  d.host.Attachments,
		Table:        d.table,
		Identities:   d.identities,
		Wake:         d.wakeConverge,
		Attribution:  d.attribution,
		Stopper:      d.stopper,
		Policy:       d.policy,
		Escapes:      d.escapes,
		Memory:       p.memory,
		LeaseChanges: p.leaseChanges,
		Notices:      make(chan leases.QueuedNotice, leases.NoticeQueue),
		Detached:     leases.Detached{Programs: d.host.Programs, Outputs: d.host.Programs},
		TimeWake:     loop.NewWake(),
		Revised:      loop.NewWake(),
		Watchers:     leases.Watchers{Watched: map[string]bool{}},
	}
	p.isolation.Leases = d.leases
	d.identities.Owns = func(uid int) bool { return d.table.Owns(uid) || d.leases.HasEnded(uid) }
	d.leases.ConvergeInterval = func() time.Duration { return d.live.tuning.Load().Converge }
	d.account.Table, d.account.Leases = d.table, d.leases
	d.account.Host = hostname()
	d.account.GPUs = func() []gpu.Identity {
		node := d.observer.Last()
		return append(node.Identities(), node.Missing...)
	}
	d.account.Held = func(id string) bool {
		return d.host.Freezer != nil &&
			slices.ContainsFunc(d.host.Freezer.Reasons(id), func(r cgroup.FreezeReason) bool { return r != cgroup.ForTimeSlice })
	}
}

// composeAdoption makes what takes logins, units and containers in.
func (d *Daemon) composeAdoption(p *parts) {
	d.adopter = &adoption.Adopter{
		Reporter:       d.Reporter,
		State:          d.state,
		RunDir:         store.RunDir(d.settings.RunDir),
		Observer:       d.observer,
		Port:           d.host.Port,
		Hierarchy:      sync.OnceValues(cgroup.FindHierarchy),
		Attachments:    d.host.Attachments,
		Table:          d.table,
		Identities:     d.identities,
		Sessions:       d.host.Sessions,
		SampleInterval: p.sampleInterval,
		Wake:           d.wakeConverge,
		Attribution:    d.attribution,
		Policy:         d.policy,
		Leases:         d.leases,
		Adoption:       adoption.Adoption{Wake: p.adoptionWake},
	}
}

// composeEngines makes what gives engines their keyed leases.
func (d *Daemon) composeEngines() {
	d.engines = &engines.Engines{
		Reporter:   d.Reporter,
		Table:      d.table,
		Observer:   d.observer,
		Identities: d.identities,
		Policy:     d.policy,
		Leases:     d.leases,
		Cgroups:    d.leases,
		Tasks:      d.tasks,
		Wake:       d.wakeConverge,
		Hierarchy:  sync.OnceValues(cgroup.FindHierarchy),
	}
}

// leaseChanged is called with the table's lock held: it only wakes loops.
func (d *Daemon) leaseChanged(l lease.Lease) {
	var result string
	var exitCode *int
	if l.State == lease.Ended {
		d.leases.Ended.Add(l)
		result, exitCode = d.leases.Result(&l)
		d.escapes.Escaped.Wake.Set()
		d.adopter.Adoption.Recheck() // Another lease may fit now.
	}
	if l.Terms.Kind() == api.ModeMPS && (l.State == lease.Ended || l.InPlace()) {
		d.wakeConverge() // Its users may reach the socket, or no longer.
	}
	d.engines.Changed(&l)
	d.account.Changed(&l, result, exitCode)
	d.leases.LeaseChanges.Report() // Some callers wait for other states too.
	d.Invalidate()
	d.policy.CDI.Update()
	d.instances.Due.Set()
	d.enforcer.Wake.Set()
	d.enforcer.Tenants.Wake.Set()
	d.enforcer.Cooling.Wake.Set()
	d.leases.TimeWake.Set()
	d.maintenance.Wake.Set()
	d.jobs.Wake.Set()
}
