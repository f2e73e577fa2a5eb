package quota

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// Priority is the class of a lease. Leases of the highest class that has work share the time of the GPU by weight; those of
// the classes below it have Config.Floor together.
type Priority int

// The priorities. The zero value is the normal one.
const (
	PriorityLow    Priority = -1
	PriorityNormal Priority = 0
	PriorityHigh   Priority = 1
)

// Member is one lease on the GPU, or on a group of GPUs that one scheduler shares.
type Member struct {
	Lease    string
	Grant    string   // leases of one grant divide its Share and Cap
	Payer    string   // who owes what it used too much: a user with a grant; empty: the lease itself
	Share    float64  // of the grant, in any unit: shares are relative
	Cap      *float64 // of the grant, 0…1: never more of the GPU's time than this, even when it is idle; nil: no cap
	Priority Priority
	// GPUs are the ones that the lease uses; its processes are frozen on all of them at once. Empty: all GPUs of the scheduler.
	GPUs []gpu.UUID
	// Active: it has a process that has the GPU open.
	Active bool
	// LowLatency: it is not frozen while it uses less than its share, and the others wait for it. Its share is a part of the whole time,
	// in percent, and no weight.
	LowLatency bool
	// NeverFreeze: it must never be frozen (a login, an adopted unit). It runs at any time and is not accounted.
	NeverFreeze bool
	// Held: another policy keeps it frozen. It gets no slices, and no other lease waits for it. The scheduler ends its own
	// freeze of the lease: the caller must keep the lease frozen for the other policy.
	Held bool
}

// overlaps reports whether two leases use the same GPU.
func (m *Member) overlaps(other *Member) bool {
	if len(m.GPUs) == 0 || len(other.GPUs) == 0 {
		return true
	}
	return slices.ContainsFunc(m.GPUs, func(id gpu.UUID) bool { return slices.Contains(other.GPUs, id) })
}
