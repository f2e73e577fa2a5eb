package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
)

const (
	// freezeAttempts is how often a lease is frozen that is found in a handshake.
	freezeAttempts = 5
	// handshakePause is the time that a handshake gets between two of them, which is many times what it needs.
	handshakePause = 30 * time.Millisecond
	// greetingTimeout is how long a lease that was found frozen in a handshake stays thawed at most.
	greetingTimeout = time.Second
)

// ErrJoins says that a lease cannot be frozen now, because one of its processes keeps others from MPS meanwhile.
var ErrJoins = errors.New("a process of it is joining MPS, and frozen it would keep all others out")

// Scopes freeze leases. *cgroup.JobFreezer is one.
type Scopes interface {
	Freeze(ctx context.Context, id string, reason cgroup.FreezeReason, d time.Duration) error
	Thaw(ctx context.Context, id string, reason cgroup.FreezeReason) error
	Stopping(ctx context.Context, id string) error
	Retain(ctx context.Context, ids map[string]bool) error
	Reasons(id string) []cgroup.FreezeReason
	Ready() error
}

// handshakes are those of the clients of the control daemons. *control.Supervisor has them.
type handshakes interface {
	Handshakes(ctx context.Context, id mps.Device) ([]control.Peer, error)
	AwaitGreeting(ctx context.Context, id mps.Device, limit time.Duration) bool
}

// Freezer freezes leases, and none on MPS while a process of it is in its handshake: the control daemon waits for that one and serves
// no other. It freezes no server. Set the fields before the first use.
type Freezer struct {
	Scopes
	Lease    func(id string) (lease.Lease, bool)
	LeaseOf  func(pid int) (id string, ok bool)
	Observed func() *observe.Node
	MPS      handshakes
	Now      func() time.Time

	mu    locks.Mutex[locks.Leaf]                      // guards until
	until map[string]map[cgroup.FreezeReason]time.Time // of leases on MPS, to freeze one again; zero: forever
}

// Freeze is that of Scopes. ErrJoins when a process of the lease stays in its handshake.
func (f *Freezer) Freeze(ctx context.Context, id string, reason cgroup.FreezeReason, d time.Duration) error {
	if reason == cgroup.ForTimeSlice { // On another GPU than MPS, and many times a second.
		return f.Scopes.Freeze(ctx, id, reason, d)
	}
	l, ok := f.Lease(id)
	if !ok || l.Terms.Kind() != api.ModeMPS {
		return f.Scopes.Freeze(ctx, id, reason, d)
	}
	if pid := f.serverIn(&l); pid != 0 {
		return fmt.Errorf("cannot freeze %s: pid %d in it is a server of MPS", id, pid)
	}
	if len(f.Reasons(id)) > 0 {
		return f.record(id, reason, d, f.Scopes.Freeze(ctx, id, reason, d))
	}
	for range freezeAttempts {
		if err := f.Scopes.Freeze(ctx, id, reason, d); err != nil {
			return err
		}
		if !f.joins(ctx, &l) {
			return f.record(id, reason, d, nil)
		}
		if err := f.Scopes.Thaw(context.WithoutCancel(ctx), id, reason); err != nil {
			return fmt.Errorf("cannot thaw %s, which is joining MPS: %w", id, err)
		}
		loop.Pause(ctx, handshakePause)
	}
	return fmt.Errorf("cannot freeze %s: %w", id, ErrJoins)
}

// record records a freeze that had no error.
func (f *Freezer) record(id string, reason cgroup.FreezeReason, d time.Duration, err error) error {
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.until == nil {
		f.until = map[string]map[cgroup.FreezeReason]time.Time{}
	}
	if f.until[id] == nil {
		f.until[id] = map[cgroup.FreezeReason]time.Time{}
	}
	f.until[id][reason] = time.Time{}
	if d != cgroup.Forever {
		f.until[id][reason] = f.Now().Add(d)
	}
	return nil
}

// forget forgets a reason of a lease.
func (f *Freezer) forget(id string, reason cgroup.FreezeReason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.until[id], reason)
	if len(f.until[id]) == 0 {
		delete(f.until, id)
	}
}

// Thaw is that of Scopes.
func (f *Freezer) Thaw(ctx context.Context, id string, reason cgroup.FreezeReason) error {
	f.forget(id, reason)
	return f.Scopes.Thaw(ctx, id, reason)
}

// Stopping is that of Scopes.
func (f *Freezer) Stopping(ctx context.Context, id string) error {
	f.mu.Lock()
	delete(f.until, id)
	f.mu.Unlock()
	return f.Scopes.Stopping(ctx, id)
}

// Retain is that of Scopes.
func (f *Freezer) Retain(ctx context.Context, ids map[string]bool) error {
	f.mu.Lock()
	maps.DeleteFunc(f.until, func(id string, _ map[cgroup.FreezeReason]time.Time) bool { return !ids[id] })
	f.mu.Unlock()
	return f.Scopes.Retain(ctx, ids)
}

// Release lets the processes of a frozen lease run until the control daemon greets again, and then freezes it as it was. frozen is
// false when it is not frozen.
func (f *Freezer) Release(ctx context.Context, id string, on mps.Device) (frozen bool, err error) {
	reasons := f.Reasons(id)
	if len(reasons) == 0 {
		return false, nil
	}
	for _, r := range reasons {
		err = errors.Join(err, f.Scopes.Thaw(ctx, id, r))
	}
	if !f.MPS.AwaitGreeting(ctx, on, greetingTimeout) {
		return true, errors.Join(err, fmt.Errorf("%s is not frozen again: it still keeps others from MPS", id))
	}
	f.mu.Lock()
	again := maps.Clone(f.until[id])
	f.mu.Unlock()
	for reason, until := range again {
		left := cgroup.Forever
		if !until.IsZero() {
			left = until.Sub(f.Now())
		}
		if left > 0 {
			err = errors.Join(err, f.Freeze(ctx, id, reason, left))
		}
	}
	return true, err
}

// joins reports whether a process of a frozen lease is in its handshake. If that cannot be found, it may be.
func (f *Freezer) joins(ctx context.Context, l *lease.Lease) bool {
	for _, d := range devicesOf(l) {
		peers, err := f.MPS.Handshakes(ctx, d)
		if err != nil && !errors.Is(err, procfs.ErrNoProcess) {
			return true
		}
		for i := range peers {
			for _, p := range peers[i].Processes {
				if id, ok := f.LeaseOf(p.PID); ok && id == l.ID {
					return true
				}
			}
		}
	}
	return false
}

// serverIn returns a server or a control daemon of gpushare that is in a lease; 0 if none is.
func (f *Freezer) serverIn(l *lease.Lease) int {
	node := f.Observed()
	for i := range node.GPUs {
		daemons := node.GPUs[i].ControlDaemons()
		for _, m := range daemons {
			for _, pid := range append([]int{m.PID}, m.Servers...) {
				if id, ok := f.LeaseOf(pid); pid != 0 && ok && id == l.ID && (pid == m.PID || attribution.IsServingMPS(daemons, pid)) {
					return pid
				}
			}
		}
	}
	return 0
}

// devicesOf returns what a lease uses.
func devicesOf(l *lease.Lease) []mps.Device {
	var out []mps.Device
	for _, id := range l.Place.GPUs {
		d := mps.Whole(id)
		if l.Place.Instance != nil {
			d.Instance = *l.Place.Instance
		}
		out = append(out, d)
	}
	return out
}
