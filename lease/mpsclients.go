package lease

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// joins records that a lease may be a client of the MPS servers of its GPUs. It counts as the clients that it has, and as one while it
// has none: its processes may join at any time.
func (o *occupancy) joins(id string, gpus []gpu.UUID, v *View) {
	for _, on := range gpus {
		if d := v.gpu(on); d != nil && d.MaxClients > 0 {
			o.at(on).clients += max(1, d.Clients[id])
		}
	}
}

// tooManyClients returns why the MPS server of a GPU has no client left for one more lease of a grant; empty if it has. A process
// above the limit would get no context (CUDA error 808 or 809).
func (t *gpuUsage) tooManyClients(d *GPUView, g *Grant) string {
	if d.MaxClients == 0 {
		return ""
	}
	used, kept := t.clients+d.Clients[""], 0
	for key, s := range t.shares {
		if s.reserved && s.leases == 0 && key != g.Key() {
			kept++
		}
	}
	switch {
	case used >= d.MaxClients:
		return fmt.Sprintf("GPU %d's MPS has %d of %d clients", d.Index, used, d.MaxClients)
	case used+kept >= d.MaxClients:
		return fmt.Sprintf("GPU %d's MPS has %d of %d clients, and keeps %d for reserved grants", d.Index, used, d.MaxClients, kept)
	}
	return ""
}
