package state

import (
	"sync/atomic"

	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// State is the spec in force, the achieved state, and the open change. Readers get values that do not change; only package
// change sets the spec and the change.
type State struct {
	Store *store.Store
	// Lost means that the state of previous runs could not be read.
	Lost bool
	// Observed is the last observation of the node; nil, or without a result: records of every boot count. Read-only after the first use.
	Observed func() *observe.Node

	correcting locks.Mutex[locks.Correction] // no change opens while the converge loop corrects
	desired    atomic.Pointer[Desired]
	changing   atomic.Pointer[OpenChange]
	found      atomic.Pointer[map[closing.Kind]closing.Closures]
	mpsClients atomic.Pointer[MPSClients]
	noProcess  atomic.Pointer[map[store.Where]uint64]
	hardMemory atomic.Pointer[map[gpu.UUID]HardMemory]
	// compared: since the daemon was started, what a boot may have removed was compared with the spec.
	compared atomic.Bool
	// lastChangeSeq is the observation with which the last change ended. An older one does not show its result.
	lastChangeSeq atomic.Uint64
}

// NewState is the state of a node without a spec.
func NewState(s *store.Store, lost bool) *State {
	x := &State{Store: s, Lost: lost}
	x.desired.Store(&Desired{})
	return x
}

// Desired is the spec in force.
func (x *State) Desired() *Desired { return x.desired.Load() }

// SpecUnread reports whether a spec was accepted that this version could not read: nothing is known of what the node should be.
func (x *State) SpecUnread() bool {
	acc := x.Stored().Accepted
	return acc != nil && acc.Unmanaged != store.UnmanagedAll && x.Desired().Spec == nil
}

// SetDesired puts a spec in force.
func (x *State) SetDesired(d *Desired) { x.desired.Store(d) }

// Changing is the open change; nil without one.
func (x *State) Changing() *OpenChange { return x.changing.Load() }

// SetChanging opens a change. It waits for a running correction.
func (x *State) SetChanging(c *OpenChange) {
	x.correcting.Lock()
	defer x.correcting.Unlock()
	x.changing.Store(c)
}

// Correct calls f unless a change is open, and no change opens meanwhile.
func (x *State) Correct(f func() error) error {
	x.correcting.Lock()
	defer x.correcting.Unlock()
	if x.Changing() != nil {
		return nil
	}
	return f()
}

// EndChange closes the open change and returns it.
func (x *State) EndChange() *OpenChange { return x.changing.Swap(nil) }

// Withdraw closes a change, unless another one took its place.
func (x *State) Withdraw(c *OpenChange) bool { return x.changing.CompareAndSwap(c, nil) }

// Starting reports whether the node was not yet compared with the spec since the daemon was started.
func (x *State) Starting() bool { return !x.compared.Load() }

// NoteCompared records that it was compared. It reports whether that was the first time.
func (x *State) NoteCompared() bool { return x.compared.CompareAndSwap(false, true) }

// LastChangeSeq is the number of the observation with which the last change ended.
func (x *State) LastChangeSeq() uint64 { return x.lastChangeSeq.Load() }

// SetLastChangeSeq sets the observation with which a change ended.
func (x *State) SetLastChangeSeq(seq uint64) { x.lastChangeSeq.Store(seq) }

// Stored is the state on disk. The returned value does not change.
func (x *State) Stored() *store.State { return x.Store.State() }
