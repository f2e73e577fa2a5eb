package state

import (
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/gpu"
)

// Closures are the places that closers closed, on disk and in memory.
func (x *State) Closures(now time.Time) closing.Closures {
	out := closing.Closures(x.Stored().Closures).Now(now)
	if found := x.found.Load(); found != nil {
		for _, k := range slices.Sorted(maps.Keys(*found)) {
			out = append(out, (*found)[k]...)
		}
	}
	return out
}

// SetFound replaces the closures of a kind that each run of the daemon finds again.
func (x *State) SetFound(k closing.Kind, list closing.Closures) {
	for i := range list {
		list[i].Kind = string(k)
	}
	for {
		was := x.found.Load()
		now := map[closing.Kind]closing.Closures{}
		if was != nil {
			maps.Copy(now, *was)
		}
		if now[k] = list; x.found.CompareAndSwap(was, &now) {
			return
		}
	}
}

// Held returns the GPUs that no change touches, with the reasons.
func (x *State) Held() map[gpu.UUID]string {
	out := map[gpu.UUID]string{}
	for _, c := range closing.Held.In(x.Stored()) {
		out[c.GPU] = c.Reason
	}
	return out
}
