package daemon

import (
	"path/filepath"
	"time"

	"github.com/gpushare/gpushare/daemon/leases"
	"github.com/gpushare/gpushare/daemon/memorylimit"
	"github.com/gpushare/gpushare/daemon/metrics"
	mpsaccess "github.com/gpushare/gpushare/daemon/mps/access"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/power"
)

// parts are what several managers share, besides other managers.
type parts struct {
	convergeWake, adoptionWake, unitWake loop.Wake

	engine         *engine.Engine
	isolation      *leases.Isolation // The table and the isolation of leases need each other: this is completed when both are made.
	leaseChanges   *stop.LeaseChanges
	samples        *observe.Samples
	hosts          *isolation.HostCache
	caps           *power.Caps
	totals         *metrics.Totals
	memory         *memorylimit.Limits
	access         *mpsaccess.Access
	sampleInterval func() time.Duration
	workerPID      func() int
	ready          func() error // whether leases can be frozen
}

// compose makes the managers and connects them. It starts nothing. Each is made after those whose methods it is given.
func (d *Daemon) compose(convergeWake, adoptionWake, unitWake loop.Wake) {
	p := &parts{
		convergeWake:   convergeWake,
		adoptionWake:   adoptionWake,
		unitWake:       unitWake,
		engine:         &engine.Engine{Log: d.Log, Now: time.Now},
		isolation:      &leases.Isolation{},
		leaseChanges:   &stop.LeaseChanges{},
		samples:        observe.NewSamples(),
		hosts:          &isolation.HostCache{Root: d.settings.HostRoot},
		caps:           &power.Caps{Driver: d.driver, Dir: filepath.Join(d.settings.StateDir, "power"), Now: time.Now},
		totals:         &metrics.Totals{},
		sampleInterval: func() time.Duration { return d.live.tuning.Load().Sample },
		workerPID:      func() int { return d.driver.Status().PID },
		ready:          func() error { return nil }, // Without a freezer another condition reports it.
	}
	if d.host.Freezer != nil {
		p.ready = d.host.Freezer.Ready
	}
	d.composeTable(p)
	d.composeShared(p)
	d.composeEscapes(p)
	d.composeLeases(p)
	d.composeAdoption(p)
	d.composeEngines()
	d.composeQuotas(p)
	d.composeChanges(p)
	d.composeConverge(p)
	d.composeUnmanaging(p)
	d.composeMPS(p)
	d.composeFiles()
	d.converger.Files = d.files
	d.composeHealth()
	d.composeMaintenance()
	d.composeViews(p)
	d.composeFreezer(p)
	d.composeMetrics(p)
	d.server.Routes = d.routes()
	p.engine.Handlers, p.engine.Timeout = d.handlers(p), d.changes.StepTimeout
}
