package closing

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/store"
)

// Kind is why a place is closed. A closer changes only closures of its own kind: what another one closed stays closed.
type Kind string

// The kinds that are kept on disk.
const (
	Maintenance Kind = store.ClosureMaintenance // an administrator took the node out of service
	Held        Kind = store.ClosureHeld        // a change failed on a GPU: none touches it until a retry
	Unhealthy   Kind = store.ClosureUnhealthy   // a GPU has trouble of its own
	Cordoned    Kind = store.ClosureCordoned    // an administrator closed a GPU
	Drained     Kind = store.ClosureDrained     // an administrator closed the MPS of a GPU or an instance
	HeldBack    Kind = store.ClosureHeldBack    // a tenant's processes caused faults in the MPS of a GPU or an instance
)

// The kinds that each run of the daemon finds again.
const (
	UnknownLease Kind = "unknown-lease" // a lease whose record was lost runs there
	Occupied     Kind = "occupied"      // a process of no lease uses it
)

// The kinds that an observation shows.
const (
	Missing    Kind = "missing"    // the driver does not find it
	Unanswered Kind = "unanswered" // it does not answer
	Changing   Kind = "changing"   // a change of it is open
	Restoring  Kind = "restoring"  // a boot or a load of the driver removed its layout
	Behind     Kind = "behind"     // it did not answer when the spec in force was applied
	MPSDown    Kind = "mps-down"   // no client can join its MPS
)

// Stored are the kinds that are kept on disk.
var Stored = []Kind{Maintenance, Held, Unhealthy, Cordoned, Drained, HeldBack}

// order is the one in which reasons are said: first what opens only by itself.
var order = []Kind{
	Maintenance, Missing, Unanswered, Changing, Held, Restoring, Behind, UnknownLease, Unhealthy, Cordoned, MPSDown, Drained, HeldBack,
	Occupied,
}

// Close closes a place in a state that is about to be written. A closure of this kind at the same place is replaced.
func (k Kind) Close(s *store.State, c store.Closure) {
	c.Kind = string(k)
	if old := k.At(s, c.Where); old != nil {
		*old = c
		return
	}
	s.Closures = append(s.Closures, c)
}

// Open removes the closure of this kind at a place, and reports whether there was one.
func (k Kind) Open(s *store.State, at store.Where) bool {
	return k.OpenIf(s, func(c *store.Closure) bool { return c.Where == at })
}

// OpenIf removes the closures of this kind for which f is true, and reports whether there was one.
func (k Kind) OpenIf(s *store.State, f func(*store.Closure) bool) bool {
	before := len(s.Closures)
	s.Closures = slices.DeleteFunc(s.Closures, func(c store.Closure) bool { return c.Kind == string(k) && f(&c) })
	return len(s.Closures) < before
}

// At is the closure of this kind at exactly this place; nil: there is none.
func (k Kind) At(s *store.State, at store.Where) *store.Closure {
	for i := range s.Closures {
		if c := &s.Closures[i]; c.Kind == string(k) && c.Where == at {
			return c
		}
	}
	return nil
}

// Closes reports whether a closure of this kind closes a whole GPU.
func (k Kind) Closes(s *store.State, id gpu.UUID) bool { return k.At(s, OnGPU(id)) != nil }

// Any reports whether f is true for a closure of this kind.
func (k Kind) Any(s *store.State, f func(*store.Closure) bool) bool {
	return slices.ContainsFunc(s.Closures, func(c store.Closure) bool { return c.Kind == string(k) && f(&c) })
}

// In are all closures of this kind.
func (k Kind) In(s *store.State) Closures { return Closures(s.Closures).Of(k) }

// OnGPU is the place of a whole GPU, for all tenants.
func OnGPU(id gpu.UUID) store.Where { return store.Where{GPU: id} }
