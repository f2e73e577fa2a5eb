package maintenance

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// retryInterval is the time between two attempts to park the driver: a client of MPS that belongs to no lease ends unnoticed.
const retryInterval = 5 * time.Second

// parkTimeout bounds one attempt: an observation, the end of MPS and the end of the worker.
const parkTimeout = time.Minute

// Begin continues a maintenance of a previous run: no worker is started in one that has parked the driver. No lease survives a
// boot, so after one nothing is waited for.
func (m *Maintenance) Begin(ctx context.Context) {
	now, driver := closing.InMaintenance(m.State.Stored())
	if now == nil {
		return
	}
	booted := driver.Boot != observe.ReadEpoch(m.Observer.HostRoot).Boot
	if driver.Driver && (driver.Parked || booted) {
		if err := m.Driver.Park(ctx); err != nil {
			m.Log.Error("cannot park the driver", "error", err)
		}
		if err := m.recordParked(); err != nil {
			m.Log.Error("cannot record that the driver is parked", "error", err)
		}
	}
	m.report()
}

// Run parks the driver when no lease uses a GPU any more, if that was requested, until ctx ends.
func (m *Maintenance) Run(ctx context.Context) {
	for {
		if m.due() {
			err := m.Changes.Alone(ctx, func() error {
				m.advance(ctx)
				return nil
			})
			if err != nil { // A change is under way; it is tried again.
				m.setWaiting(err.Error())
			}
		}
		pause := time.Hour
		if m.due() {
			pause = retryInterval
		}
		if _, ok := m.Wake.Sleep(ctx, pause); !ok {
			return
		}
	}
}

// due reports whether the driver is to be parked.
func (m *Maintenance) due() bool {
	_, driver := closing.InMaintenance(m.State.Stored())
	return driver.Driver && !driver.Parked
}

// advance parks the driver if that was requested and no lease is in the way, and keeps the reason if it cannot. It must be called
// in Alone.
func (m *Maintenance) advance(ctx context.Context) {
	if !m.due() {
		return
	}
	if len(m.leases()) > 0 {
		m.report()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, parkTimeout)
	defer cancel()
	err := m.park(ctx)
	if err != nil {
		m.setWaiting(err.Error())
		m.Log.Warn("cannot park the driver yet", "error", err)
	} else {
		m.setWaiting("")
		m.Events.Publish(api.Event{Kind: "maintenance.parked", Message: "MPS and the NVML worker are stopped: the driver can be unloaded"})
	}
	m.report()
	m.Converger.Refresh(ctx, m.Observer.Last())
}

// park stops MPS, reads back that it is stopped, and ends the worker. The loop that corrects the node would start MPS again, so a
// change is open meanwhile; from then on it starts nothing, because the driver does not answer.
func (m *Maintenance) park(ctx context.Context) error {
	open := &state.OpenChange{Operation: "maintenance", GPUs: map[gpu.UUID]bool{}}
	for _, g := range m.Observer.Last().Identities() {
		open.GPUs[g.UUID] = true
	}
	m.State.SetChanging(open)
	defer m.State.Withdraw(open)
	node := m.Observer.Observe(ctx)
	if node.DriverErr == nil {
		if err := m.stopMPS(ctx, node); err != nil {
			return err
		}
	}
	if err := m.Driver.Park(ctx); err != nil {
		return err
	}
	if err := m.recordParked(); err != nil {
		return fmt.Errorf("cannot record that the driver is parked: %w", err)
	}
	m.Observer.Invalidate()
	// It restores nothing, because no GPU answers. An instance that is missing when they answer again was removed by a reset meanwhile.
	m.Changes.Restore(m.Observer.Observe(ctx))
	return nil
}

// stopMPS stops the control daemons that have no clients. One with clients is the reason that is returned: they are not stopped.
func (m *Maintenance) stopMPS(ctx context.Context, node *observe.Node) error {
	steps, _ := planner.PlanMPS(&state.Desired{}, node, nil, nil)
	if len(steps) == 0 {
		return nil
	}
	for i := range steps {
		if s := &steps[i]; s.Disruption == step.Running {
			g, _ := node.GPU(gpu.UUID(s.GPU))
			return fmt.Errorf("the MPS of %s has clients in no lease: %s", g.Identity.Name(), step.Join(s.Disturbs))
		}
	}
	if err := m.Converger.CarryOut(ctx, steps); err != nil {
		return fmt.Errorf("cannot stop MPS: %w", err)
	}
	return nil
}

// recordParked records that no worker is started until the end of the maintenance.
func (m *Maintenance) recordParked() error {
	return m.State.Store.Update(func(s *store.State) error {
		now, driver := closing.InMaintenance(s)
		if now == nil {
			return nil
		}
		driver.Parked = true
		now.Maintenance = &driver // The state is a copy.
		return nil
	})
}
