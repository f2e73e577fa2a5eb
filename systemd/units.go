package systemd

import (
	"context"
	"errors"
	"fmt"

	sd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/gpushare/gpushare/cgroup"
)

// UnitActive reports whether a unit of the host runs, starts or stops; cgroup.ErrNotFound when there is no such unit.
func (a *Adapter) UnitActive(ctx context.Context, unit string) (bool, error) {
	st, err := a.serviceState(ctx, unit)
	if err != nil {
		return false, err
	}
	return st.Active != "inactive" && st.Active != "failed", nil
}

// UnitRuns reports whether a unit of the host runs or starts: one that still stops does not; cgroup.ErrNotFound when there is no such
// unit.
func (a *Adapter) UnitRuns(ctx context.Context, unit string) (bool, error) {
	st, err := a.serviceState(ctx, unit)
	if err != nil {
		return false, err
	}
	return st.Active != "inactive" && st.Active != "failed" && st.Active != "deactivating", nil
}

// StopUnit stops a unit of the host and returns when it has stopped. It waits for the unit's own stop timeout, up to the end
// of ctx: a repeated call joins a stop that has begun.
func (a *Adapter) StopUnit(ctx context.Context, unit string) error {
	for {
		err := a.stop(ctx, unit)
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// StartUnit starts a unit of the host and returns when it runs.
func (a *Adapter) StartUnit(ctx context.Context, unit string) error {
	// It cannot cancel a shutdown that has begun: the jobs of a shutdown are irreversible.
	err := a.bus.job(ctx, "start "+unit, func(ctx context.Context, c *sd.Conn, ended chan<- string) (int, error) {
		return c.StartUnitContext(ctx, unit, "replace", ended)
	})
	if is(err, "NoSuchUnit") {
		return fmt.Errorf("cannot start %s: %w", unit, cgroup.ErrNotFound)
	}
	return err
}
