package stop

import (
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/lease"
)

// conditionNotEnded is the condition of a lease whose processes were killed and have not exited. Its place is not free until they
// have.
const conditionNotEnded = "lease-not-ended"

// conditionRefused is the condition of a lease whose processes a security module keeps from getting SIGTERM.
const conditionRefused = "signal-refused"

// refused reports that a lease is stopped without SIGTERM, until it has ended.
func (s *Stopper) refused(l *lease.Lease) func(error) {
	return func(err error) {
		c := api.Condition{
			Tenant:  l.Terms.Tenant,
			Message: "SIGTERM does not reach all processes of lease " + l.ID + ", so they are killed after their grace: " + err.Error(),
		}
		if refused, ok := errors.AsType[*procfs.RefusedError](err); ok {
			c.Hint = refused.Hint()
		}
		if len(l.Place.GPUs) == 1 {
			c.GPU = string(l.Place.GPUs[0])
		}
		s.Conditions.Put(conditionRefused, l.ID, c)
		s.Audit("gpushared", "stop", c.Message)
	}
}

// watcher reports what the kill of a lease waits for.
func (s *Stopper) watcher(l *lease.Lease) watcher {
	uid := uint32(l.UID)
	return watcher{
		waits: func(alive *AliveError) {
			what := "lease " + l.ID + " does not end: "
			if l.InPlace() {
				what = "a process of lease " + l.ID + " does not end: " // The lease may continue without it.
			}
			c := api.Condition{Tenant: l.Terms.Tenant, Message: what + alive.Error(), Hint: alive.Hint()}
			if len(l.Place.GPUs) == 1 {
				c.GPU = string(l.Place.GPUs[0])
			}
			s.Conditions.Put(conditionNotEnded, l.ID, c)
		},
		stopped: func(text string) {
			s.Events.Publish(l.Event("process.stopping", text))
			s.Audit("gpushared", "stop", text)
		},
		aborted: func(text string) {
			s.Events.Publish(l.Event("mount.aborted", text))
			s.Audit("gpushared", "stop", text)
		},
		owner: &uid,
	}
}

// Ended reports that all processes of a lease have exited.
func (s *Stopper) Ended(l *lease.Lease) {
	s.Conditions.Clear(conditionNotEnded, l.ID)
	s.Conditions.Clear(conditionRefused, l.ID)
}

// failed is the error of a stop, with what helps.
func (s *Stopper) failed(what string, err error) error {
	err = fmt.Errorf("%s: %w", what, err)
	if alive, ok := errors.AsType[*AliveError](err); ok {
		return &api.Error{Kind: api.KindInUse, Message: err.Error(), Hint: alive.Hint()}
	}
	if refused, ok := errors.AsType[*procfs.RefusedError](err); ok {
		return &api.Error{Kind: api.KindInUse, Message: err.Error(), Hint: refused.Hint()}
	}
	return err
}

// Reporting reports what is done so that they exit once they are killed: for processes of no lease.
func (p *Processes) Reporting(r *report.Reporter) *Processes {
	p.watcher = reporting(r)
	return p
}

// reporting is watcher for processes of no lease that is known.
func reporting(r *report.Reporter) watcher {
	return watcher{
		stopped: func(text string) {
			r.Events.Publish(api.Event{Kind: "process.stopping", Message: text})
			r.Audit("gpushared", "stop", text)
		},
		aborted: func(text string) {
			r.Events.Publish(api.Event{Kind: "mount.aborted", Message: text})
			r.Audit("gpushared", "stop", text)
		},
	}
}
