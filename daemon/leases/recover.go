package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// SaveLeases writes the table, to be kept until the next boot, before a lease is reported.
func (ls *Leases) SaveLeases(_ context.Context, state []byte) error {
	ls.saveEnded()
	err := ls.RunDir.Write(leasesFile, state)
	if err == nil {
		ls.recorded.Store(true)
	}
	return err
}

// leasesFile is the record of the leases.
const leasesFile = "leases.json"

// Restore recovers the leases of the previous run, ends those whose processes have exited, and finds those without a record.
func (ls *Leases) Restore(ctx context.Context) error {
	return errors.Join(ls.restoreTable(ctx), ls.findUnknown(ctx))
}

func (ls *Leases) restoreTable(ctx context.Context) error {
	if err := ls.restoreEnded(); err != nil {
		ls.Log.Warn("the ended leases of the previous run are lost", "error", err)
	}
	b, damage, err := ls.RunDir.Read(leasesFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err = cmp.Or(err, damage.Err()); err != nil {
		return err
	}
	if damage != nil {
		ls.Conditions.Set(
			"state", "leases", "the newest record of the leases could not be read, the one before it is used: "+damage.Reason,
			"see 'gpushare lease list'; a lease that is missing there is reported by another condition",
		)
		ls.Log.Error("the record of the leases was damaged", "message_id", report.MessageLeasesDamaged, "reason", damage.Reason)
	}
	if err := ls.Table.Restore(b); err != nil {
		return err
	}
	ls.recorded.Store(damage == nil)
	var ended []lease.Lease
	for _, l := range ls.Table.Live() {
		if l.AwaitsCgroup() {
			continue
		}
		found, err := ls.recoverLease(ctx, &l)
		if err != nil {
			return err // The daemon ends: leases outlive it.
		}
		if found {
			ls.Table.Recovered(l.ID, l.Process)
			ls.WatchLease(l.ID)
			continue
		}
		ended = append(ended, l)
	}
	ls.finishPrograms(ctx, ended)
	for _, l := range ended {
		ls.Escapes.Note(&l) // They may have escaped instead.
		end, cancel := context.WithTimeout(ctx, stop.IsolationTimeout)
		if err := ls.Table.Ended(end, l.ID, "its processes exited while the daemon did not run"); err != nil {
			ls.Log.Error("cannot end a lease", "lease", l.ID, "error", err)
		}
		cancel()
	}
	ls.pruneOutputs()
	ls.awaitSavedTickets()
	return nil
}

// finishPrograms ends what still runs for detached commands of leases that have ended meanwhile or before. What runs for a lease whose
// record was lost is not ended: the lease may run.
func (ls *Leases) finishPrograms(ctx context.Context, ended []lease.Lease) {
	ctx, cancel := context.WithTimeout(ctx, resultTimeout)
	defer cancel()
	ls.Detached.Programs.Finish(ctx, func(id string) bool {
		if slices.ContainsFunc(ended, func(l lease.Lease) bool { return l.ID == id }) {
			return true
		}
		_, live := ls.Table.Get(id)
		_, known := ls.Ended.get(id)
		return known && !live
	})
}

// recoverRetryInterval is the pause between two attempts to recover a lease.
const recoverRetryInterval = time.Second

// recoverLease finds one lease's processes after a restart. While the service manager does not answer it tries again: a
// lease is not ended if its state is unknown.
func (ls *Leases) recoverLease(ctx context.Context, l *lease.Lease) (bool, error) {
	for {
		try, cancel := context.WithTimeout(ctx, stop.IsolationTimeout)
		if l.Origin == lease.OriginDetached {
			ls.findProgram(try, l)
		}
		found, err := ls.Recover(try, l)
		cancel()
		if err == nil {
			return found, nil
		}
		ls.Log.Warn("cannot recover a lease", "lease", l.ID, "error", err)
		if !loop.Pause(ctx, recoverRetryInterval) {
			return false, ctx.Err()
		}
	}
}

// Recover finds one lease's processes after a restart, and thaws them: the scheduler starts again.
func (ls *Leases) Recover(ctx context.Context, l *lease.Lease) (bool, error) {
	if l.InPlace() {
		return ls.recoverInPlace(ctx, l), nil
	}
	for _, port := range []cgroup.Port{ls.Port, ls.Follow} {
		if port == cgroup.Port(ls.Follow) && l.Isolation.Cgroup != "" {
			break // It was isolated: a process of it outside its scope has escaped.
		}
		state, err := port.Recover(ctx, scopeOf(l, cgroup.Process(l.Process), nil))
		if errors.Is(err, cgroup.ErrNotFound) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", port.Info().Adapter, err)
		}
		if err := port.Thaw(ctx, l.ID); err != nil && !errors.Is(err, cgroup.ErrNotSupported) {
			ls.Log.Error("cannot thaw a recovered lease", "lease", l.ID, "error", err)
		}
		ls.Table.SetIsolation(l.ID, isolationStatus(port.Info(), state))
		return true, nil
	}
	return false, nil
}
