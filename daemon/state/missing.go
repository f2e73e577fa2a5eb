package state

import (
	"maps"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// MissingReason is why a GPU that is missing has no other state, and is not changed.
const MissingReason = "the driver does not find it"

// Missing are the managed GPUs that the driver does not find. A change leaves them as they are.
func Missing(want *Desired, node *observe.Node) []api.HeldGPU {
	var out []api.HeldGPU
	for _, id := range node.Missing {
		if want.Manages(id.UUID) {
			out = append(out, api.HeldGPU{GPU: string(id.UUID), Index: id.Index, Reason: MissingReason, Command: "gpushare config reload"})
		}
	}
	return out
}

// MissingHint is what brings a missing GPU back.
const MissingHint = "'lspci -d 10de:' lists the devices; it is used again when the driver finds it, and 'gpushare apply' of a spec without it ends this"

// RecordMissing records since when GPUs are missing. A restart of the daemon does not change it. It writes only what is new.
func (x *State) RecordMissing(node *observe.Node) error {
	was := x.Stored().MissingSince
	now := map[gpu.UUID]time.Time{}
	for i := range node.Missing {
		id := node.Missing[i].UUID
		if now[id] = was[id]; now[id].IsZero() {
			now[id] = node.At
		}
	}
	if maps.Equal(was, now) {
		return nil
	}
	return x.Store.Update(func(s *store.State) error {
		s.MissingSince = now
		return nil
	})
}
