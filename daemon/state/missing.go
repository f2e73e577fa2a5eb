package state

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// MissingReason is why a GPU that is missing has no other state, and is not changed.
const MissingReason = "the driver does not find it"

// Missing are the managed GPUs that the driver does not find, and that the spec does not do without. A change leaves them as they are.
func Missing(want *Desired, node *observe.Node) []api.HeldGPU {
	var out []api.HeldGPU
	for _, id := range node.Missing {
		if want.Manages(id.UUID) && !want.Optional(id.UUID) {
			out = append(out, api.HeldGPU{GPU: string(id.UUID), Index: id.Index, Reason: MissingReason, Command: "gpushare config reload"})
		}
	}
	return out
}

// MissingGPUs are the GPUs of the spec that the driver does not find. They are there for the requests that wait for them.
func MissingGPUs(want *Desired, node *observe.Node) []lease.GPUView {
	var out []lease.GPUView
	for i := range node.Missing {
		id := &node.Missing[i]
		if e := want.GPUs[id.UUID]; e != nil {
			out = append(out, lease.GPUView{
				UUID:       id.UUID,
				Index:      id.Index,
				Mode:       e.Mode,
				Capacity:   id.Memory,
				Reserve:    want.GPUMemoryReserve(id.UUID),
				Overcommit: e.Overcommit,
				Missing:    true,
			})
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

// RefuseMissing says since when a GPU is missing, and what brings it back; nil if none that has, or had, this index or UUID is.
func (x *State) RefuseMissing(node *observe.Node, name string) error {
	for i := range node.Missing {
		id := &node.Missing[i]
		if string(id.UUID) != name && (id.Index < 0 || strconv.Itoa(id.Index) != name) {
			continue
		}
		which := string(id.UUID)
		if id.Index >= 0 {
			which = fmt.Sprintf("GPU %d (%s)", id.Index, id.UUID)
		}
		if id.PCI != "" {
			which += " at " + id.PCI
		}
		reason := MissingReason
		if since := x.Stored().MissingSince[id.UUID]; !since.IsZero() {
			reason = "the driver has not found it since " + since.Local().Format(time.DateTime)
		}
		return &api.Error{Kind: api.KindUnavailable, Message: "cannot try " + which + " again: it is missing: " + reason, Hint: MissingHint}
	}
	return nil
}
