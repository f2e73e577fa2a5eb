package lease

import "fmt"

// joins records that a lease may be a client of the MPS servers at its place. It counts as the clients that it has, and as one while it
// has none: its processes may join at any time.
func (o *occupancy) joins(id string, p *Place, v *View) {
	for _, on := range p.GPUs {
		if d := v.gpu(on); d != nil && d.maxClientsAt(p) > 0 {
			o.shared(p, on).clients += max(1, d.Clients[id])
		}
	}
}

// tooManyClients returns why an MPS server has no client left for one more lease of a grant; empty if it has. A process
// above the limit would get no context (CUDA error 808 or 809).
func (t *gpuUsage) tooManyClients(d *divisible, g *Grant) string {
	most := d.maxClients()
	if most == 0 {
		return ""
	}
	used, kept := t.clients+d.gpu.Clients[""], 0
	for key, s := range t.shares {
		if s.reserved && s.leases == 0 && key != g.Key() {
			kept++
		}
	}
	switch {
	case used >= most:
		return fmt.Sprintf("%v's MPS has %d of %d clients", d, used, most)
	case used+kept >= most:
		return fmt.Sprintf("%v's MPS has %d of %d clients, and keeps %d for reserved grants", d, used, most, kept)
	}
	return ""
}
