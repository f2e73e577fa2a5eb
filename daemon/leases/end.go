package leases

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/lease"
)

// DeleteLease stops a lease gracefully (SIGTERM, then SIGKILL) and answers when it has ended.
func (ls *Leases) DeleteLease(c *server.Call) error {
	id := c.R.PathValue("id")
	l, ok := ls.Table.Get(id)
	if !ok && c.Caller.Admin && ls.isUnknown(id) {
		if err := c.AsAdmin("stop a lease"); err != nil {
			return err
		}
		if err := ls.Stopper.KillUnknown(c.Ctx(), ls.Port, id); err != nil {
			return err
		}
		return c.Reply(http.StatusOK, map[string]string{"stopped": id})
	}
	if !ok || !(c.Caller.Admin || c.Caller.IsMember(l.Terms.Tenant) || c.Caller.IsUserOf(&l)) {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no lease %q that you may stop", id),
			Hint:    "see 'gpushare lease list'",
		}
	}
	c.Note.Tenant, c.Note.Text = l.Terms.Tenant, "a lease of "+l.User
	if !c.Caller.MayEnd(&l) {
		return &api.Error{
			Kind:    api.KindDenied,
			Message: fmt.Sprintf("%s may not stop lease %s of user %s", c.Caller.Name, id, l.User),
			Hint:    "its user or an administrator may",
		}
	}
	if !c.Caller.IsUserOf(&l) {
		if err := c.AsAdmin("stop lease " + id); err != nil {
			return err
		}
	}
	if err := ls.StopLease(c.Ctx(), &l, "stopped by "+c.Caller.Name, stop.StopGrace); err != nil {
		return err
	}
	return c.Reply(http.StatusOK, map[string]string{"stopped": id})
}

// StopLease stops the processes of a lease and ends the lease. It returns when the lease has ended.
func (ls *Leases) StopLease(ctx context.Context, l *lease.Lease, reason string, grace time.Duration) error {
	if ls.Table.DropContainer(l.ID, reason, time.Time{}) {
		return nil // It waited for its container, and has no process.
	}
	if dropped, err := ls.Table.DropUnbound(ctx, l.ID, reason); dropped {
		ls.Events.Publish(l.Event("lease.ended", reason))
		ls.Wake()
		return err // It waited for its cgroup.
	}
	if err := ls.Table.Ending(l.ID, reason); err != nil {
		return err
	}
	notify := func(ctx context.Context) {
		ls.Table.Notice(l.ID, lease.Notice{Kind: "lease.stopping", Text: "it is being stopped: " + reason})
		ls.awaitDelivery(ctx)
	}
	if err := ls.Stopper.Lease(ctx, l, grace, notify); err != nil {
		return err
	}
	if err := ls.Table.Ended(ctx, l.ID, reason); err != nil {
		return err
	}
	return ls.Stopper.AwaitEnded(ctx, l.ID)
}

// RemoveIsolation kills what is left in the scope. Processes in place continue as before their lease.
func (w Isolation) RemoveIsolation(ctx context.Context, l lease.Lease) error {
	if l.InPlace() {
		w.Leases.Stopper.Ended(&l)
		w.Leases.recordExit(ctx, &l)
		w.Leases.releaseInPlace(ctx, &l)
		if err := w.Leases.Policy.SyncLoginFilters(nil, l.ID); err != nil {
			w.Leases.Log.Warn("cannot revoke a GPU from a login", "lease", l.ID, "error", err) // The converge loop tries again.
		}
		return nil
	}
	w.Leases.Memory.End(ctx, &l)
	// An interrupted start is not recorded: both ports are called; a port without the scope does nothing.
	for _, port := range []cgroup.Port{w.Leases.Port, w.Leases.Follow} {
		if err := w.Leases.Stopper.KillScope(ctx, port, &l); err != nil {
			return err
		}
	}
	w.Leases.Stopper.Ended(&l)
	if l.Origin == lease.OriginDetached {
		w.Leases.recordResult(ctx, l.ID)
	}
	w.Leases.recordExit(ctx, &l)
	return nil
}
