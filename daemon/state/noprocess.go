package state

import "github.com/gpushare/gpushare/internal/store"

// SetInNoProcess replaces how much memory, in bytes, is used and in no process, by GPU and by MIG instance. The caller does not change
// the map afterwards.
func (x *State) SetInNoProcess(bytes map[store.Where]uint64) { x.noProcess.Store(&bytes) }

// InNoProcess is how much memory is used and in no process.
func (x *State) InNoProcess() map[store.Where]uint64 {
	if bytes := x.noProcess.Load(); bytes != nil {
		return *bytes
	}
	return nil
}
