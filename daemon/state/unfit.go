package state

import (
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/gpu"
)

// Unfit are the GPUs that take no new lease, whatever the spec says, with the reasons: an administrator cordoned them, or they have
// trouble of their own. The users who wait read the reasons.
func (x *State) Unfit() map[gpu.UUID]string {
	out, st := map[gpu.UUID]string{}, x.Stored()
	for id := range st.Unhealthy {
		out[id] = "it is unhealthy: " + st.Unhealthy[id].Cause
	}
	for _, c := range closing.Cordoned.In(st) {
		out[c.GPU] = closing.Text(&c)
	}
	return out
}
