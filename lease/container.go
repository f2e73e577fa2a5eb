package lease

import (
	"slices"
	"time"
)

// AwaitsContainer reports whether the lease has its place and waits for a container to be started with it.
func (l *Lease) AwaitsContainer() bool {
	return l.State == Placed && l.Origin == OriginContainer && l.Cgroup == "" && l.Process == (Process{})
}

// ArrivedContainer records which container a lease was waiting for; the caller starts the lease then. It is false if no such
// lease waits: another container has it, or its time is over.
func (t *Table) ArrivedContainer(id, cgroup, unit string, command []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.busy || !e.AwaitsContainer() {
		return false
	}
	e.Cgroup, e.Unit, e.Command = cgroup, unit, slices.Clone(command)
	t.changedLocked(&e.Lease)
	return true
}

// DropContainer frees the place of a lease whose container has not come, and returns whether it was one. With a time it does
// so only if the lease was requested before it.
func (t *Table) DropContainer(id, reason string, before time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.busy || !e.AwaitsContainer() || !before.IsZero() && !e.Created.Before(before) {
		return false
	}
	e.Reason = reason
	t.removeLocked(e)
	t.evaluateLocked()
	return true
}
