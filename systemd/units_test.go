package systemd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/cgroup"
)

// A unit of the host is stopped and started again. A missing unit differs from one that does not run.
func TestUnitsOfTheHost(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	const unit = "nvidia-dcgm.service"
	f.set(func() { f.unitLocked(unit).start("/system.slice/" + unit) })
	f.taken()
	runs := func(want bool) {
		t.Helper()
		if got, err := a.UnitActive(ctx, unit); err != nil || got != want {
			t.Errorf("it runs: %v, %v", got, err)
		}
		if got, err := a.UnitRuns(ctx, unit); err != nil || got != want {
			t.Errorf("it runs, and does not stop: %v, %v", got, err)
		}
	}
	runs(true)
	for range 2 {
		if err := a.StopUnit(ctx, unit); err != nil {
			t.Fatal(err)
		}
	}
	runs(false)
	if err := a.StartUnit(ctx, unit); err != nil {
		t.Fatal(err)
	}
	runs(true)
	want := []string{"StopUnit " + unit + " replace", "StopUnit " + unit + " replace", "StartUnit " + unit + " replace"}
	if d := cmp.Diff(want, f.taken()); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
	if _, err := a.UnitActive(ctx, "missing.service"); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("of a missing unit: %v", err)
	}
	if err := a.StopUnit(ctx, "missing.service"); err != nil {
		t.Errorf("stopping a missing unit: %v", err)
	}
	if err := a.StartUnit(ctx, "missing.service"); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("starting a missing unit: %v", err)
	}
	f.set(func() { f.unitLocked(unit).active = "deactivating" })
	if active, err := a.UnitActive(ctx, unit); err != nil || !active {
		t.Errorf("a unit that still stops is active: %v, %v", active, err)
	}
	if runs, err := a.UnitRuns(ctx, unit); err != nil || runs {
		t.Errorf("a unit that still stops runs: %v, %v", runs, err)
	}
	f.set(func() { f.hang = true })
	if err := a.StopUnit(within(t, 50*time.Millisecond), unit); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a unit that does not stop: %v", err)
	}
}

// A unit that starts has a cgroup, a unit that stops no longer has one. The rule is the same for scopes of gpushare and
// units of the host.
func TestUnitCgroup(t *testing.T) {
	a, f := openFake(t)
	ctx := within(t, 10*time.Second)
	scope, service := scopeUnit(a.prefix, "l-1"), "nvidia-dcgm.service"
	for _, unit := range []string{scope, service} {
		f.set(func() { f.unitLocked(unit).start("/x/" + unit) })
	}
	for state, runs := range map[string]bool{
		"active": true, "activating": true, "reloading": true, "refreshing": true, "deactivating": false, "inactive": false, "failed": false,
	} {
		f.set(func() { f.unitLocked(scope).active, f.unitLocked(service).active = state, state })
		for unit, query := range map[string]func(context.Context, string) (string, error){scope: a.scopeCgroup, service: a.UnitCgroup} {
			if cg, err := query(ctx, unit); runs && (err != nil || cg != "/x/"+unit) || !runs && !errors.Is(err, cgroup.ErrNotFound) {
				t.Errorf("%s that is %s: %q, %v", unit, state, cg, err)
			}
		}
	}
}
