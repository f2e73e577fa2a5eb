package change

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
)

// lockChanges is lock for a change that needs the driver: none begins while that is replaced.
func (cs *Changes) lockChanges(ctx context.Context) (done func(), err error) {
	done, err = cs.lock(ctx)
	// A maintenance holds the lock while it parks the driver. It is what the caller has to know, because it lasts.
	if inMaintenance := cs.State.UsesDriver(); inMaintenance != nil {
		if err == nil {
			done()
		}
		return nil, inMaintenance
	}
	return done, err
}

// lock admits one caller to change the node, until done is called. It waits for a change that only creates or removes
// instances on demand, because that is short; any other open change is a conflict.
func (cs *Changes) lock(ctx context.Context) (done func(), err error) {
	// The planning of instances on demand is short: wait for it.
	cs.planning.Lock()
	locked := cs.applyMu.TryLock()
	cs.planning.Unlock()
	if !locked {
		return nil, cs.conflict()
	}
	ch := cs.State.Changing()
	if ch != nil && ch.Brief {
		wait, cancel := context.WithTimeout(ctx, briefTimeout)
		defer cancel()
		select {
		case <-ch.Ended:
		case <-wait.Done():
		}
	}
	if cs.State.Changing() != nil {
		cs.applyMu.Unlock()
		return nil, cs.conflict()
	}
	return func() {
		cs.applyMu.Unlock()
		cs.Idle() // A request may wait for an instance since then.
	}, nil
}

// briefTimeout is how long a caller waits for a change that only creates or removes instances on demand.
const briefTimeout = time.Minute

func (cs *Changes) conflict() error {
	e := &api.Error{Kind: api.KindConflict, Message: "another change is under way", Hint: "wait for it and try again"}
	ch := cs.State.Changing()
	e.Planning = ch == nil
	if ch != nil {
		e.Operation = ch.Operation
		e.Message += ": " + ch.Operation
		if cs.Operations.Has(ch.Operation) { // It has no operation while it is planned.
			e.Hint = fmt.Sprintf(
				"'gpushare operation wait %s' waits for it: then try again; 'gpushare apply --wait' does both", ch.Operation,
			)
		}
	}
	return e
}

// Exclusive calls f while no other change is planned or open.
func (cs *Changes) Exclusive(ctx context.Context, f func() error) error {
	done, err := cs.lockChanges(ctx)
	if err != nil {
		return err
	}
	defer done()
	return f()
}

// Alone is Exclusive for what is also possible in a maintenance.
func (cs *Changes) Alone(ctx context.Context, f func() error) error {
	done, err := cs.lock(ctx)
	if err != nil {
		return err
	}
	defer done()
	return f()
}

// Briefly calls f, which takes a short time, while no other change is planned. It reports whether it did. Callers that want to change the
// node wait for it and are not refused.
func (cs *Changes) Briefly(f func()) bool {
	cs.planning.Lock()
	defer cs.planning.Unlock()
	if !cs.applyMu.TryLock() {
		return false
	}
	defer cs.applyMu.Unlock()
	f()
	return true
}
