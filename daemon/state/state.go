package state

import (
	"sync/atomic"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/store"
)

// State is the spec in force, what was reached of it, and the change under way. Readers get values that do not change;
// the spec and the change are set by who carries changes out, and by nobody else.
type State struct {
	Store *store.Store
	// Lost tells that what an earlier life kept could not be read.
	Lost bool

	correcting locks.Mutex[locks.Correction] // no change begins while the converge loop mends
	desired    atomic.Pointer[Desired]
	changing   atomic.Pointer[OpenChange]
	// lastChangeSeq is the observation with which the last change ended: what older ones lack was not taken by others.
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

// SetDesired puts a spec in force.
func (x *State) SetDesired(d *Desired) { x.desired.Store(d) }

// Changing is the change under way; nil when there is none.
func (x *State) Changing() *OpenChange { return x.changing.Load() }

// SetChanging says that a change is under way. It waits for what is being mended.
func (x *State) SetChanging(c *OpenChange) {
	x.correcting.Lock()
	defer x.correcting.Unlock()
	x.changing.Store(c)
}

// Correct calls f unless a change is under way, and lets none begin meanwhile.
func (x *State) Correct(f func() error) error {
	x.correcting.Lock()
	defer x.correcting.Unlock()
	if x.Changing() != nil {
		return nil
	}
	return f()
}

// EndChange says that none is any more, and gives the one that was.
func (x *State) EndChange() *OpenChange { return x.changing.Swap(nil) }

// Withdraw says that a change is no longer under way, unless another one is by now.
func (x *State) Withdraw(c *OpenChange) bool { return x.changing.CompareAndSwap(c, nil) }

// LastChangeSeq is the number of the observation with which the last change ended.
func (x *State) LastChangeSeq() uint64 { return x.lastChangeSeq.Load() }

// SetLastChangeSeq says with which observation a change ended.
func (x *State) SetLastChangeSeq(seq uint64) { x.lastChangeSeq.Store(seq) }

// Stored is what is on disk. It is not changed after it was read.
func (x *State) Stored() *store.State { return x.Store.State() }

// Held gives the GPUs that are left alone, and why.
func (x *State) Held() map[gpu.UUID]string {
	out := map[gpu.UUID]string{}
	for id, h := range x.Stored().Held {
		out[id] = h.Reason
	}
	return out
}
