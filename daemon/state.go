package daemon

import (
	"sync"
	"sync/atomic"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/store"
)

// State is the spec in force, what was reached of it, and the change under way. Readers get values that do not change;
// the spec and the change are set by who carries changes out, and by nobody else.
type State struct {
	Store *store.Store
	// Lost tells that what an earlier life kept could not be read.
	Lost bool

	mending  sync.Mutex // no change begins while the converge loop mends
	desired  atomic.Pointer[desired]
	changing atomic.Pointer[openChange]
	// settledAt is the observation with which the last change ended: what older ones lack was not taken by others.
	settledAt atomic.Uint64
}

// NewState is the state of a node without a spec.
func NewState(s *store.Store, lost bool) *State {
	x := &State{Store: s, Lost: lost}
	x.desired.Store(&desired{})
	return x
}

// Desired is the spec in force.
func (s *State) Desired() *desired { return s.desired.Load() }

// SetDesired puts a spec in force.
func (s *State) SetDesired(d *desired) { s.desired.Store(d) }

// Changing is the change under way; nil when there is none.
func (s *State) Changing() *openChange { return s.changing.Load() }

// SetChanging says that a change is under way. It waits for what is being mended.
func (s *State) SetChanging(c *openChange) {
	s.mending.Lock()
	defer s.mending.Unlock()
	s.changing.Store(c)
}

// Mend calls f unless a change is under way, and lets none begin meanwhile.
func (s *State) Mend(f func() error) error {
	s.mending.Lock()
	defer s.mending.Unlock()
	if s.Changing() != nil {
		return nil
	}
	return f()
}

// EndChange says that none is any more, and gives the one that was.
func (s *State) EndChange() *openChange { return s.changing.Swap(nil) }

// Withdraw says that a change is no longer under way, unless another one is by now.
func (s *State) Withdraw(c *openChange) bool { return s.changing.CompareAndSwap(c, nil) }

// SettledAt is the number of the observation with which the last change ended.
func (s *State) SettledAt() uint64 { return s.settledAt.Load() }

// SetSettledAt says with which observation a change ended.
func (s *State) SetSettledAt(seq uint64) { s.settledAt.Store(seq) }

// Kept is what is on disk. It is not changed after it was read.
func (s *State) Kept() *store.State { return s.Store.State() }

// held gives the GPUs that are left alone, and why.
func (s *State) held() map[gpu.UUID]string {
	out := map[gpu.UUID]string{}
	for id, h := range s.Kept().Held {
		out[id] = h.Reason
	}
	return out
}
