package lease

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Place is where a lease is: one or more GPUs, one instance of one GPU, or a share of one GPU.
type Place struct {
	GPUs     []gpu.UUID     `json:"gpus"`
	Instance *gpu.Placement `json:"instance,omitempty"`   // of a MIG lease
	Profile  string         `json:"profile,omitempty"`    // of that instance
	Memory   uint64         `json:"gpu_memory,omitempty"` // of that instance, in bytes
	// Generation is gpushare's number of the instance: an instance that is created again at the same placement has the
	// same UUIDs.
	Generation uint64 `json:"generation,omitempty"`
	// Compute is the MIG device of the one compute instance that it has of an instance that is split; empty: it has all of
	// the instance.
	Compute gpu.UUID `json:"compute,omitempty"`
	// Devices is what the lease's processes may use: GPU UUIDs, or the MIG UUIDs of the instance.
	Devices []gpu.UUID `json:"devices"`
}

// same reports whether two places are equal.
func (p *Place) same(q *Place) bool {
	if (p.Instance == nil) != (q.Instance == nil) || p.Instance != nil && *p.Instance != *q.Instance {
		return false
	}
	return p.Compute == q.Compute && slices.Equal(p.GPUs, q.GPUs)
}

// obstacle is why a grant has no place now.
type obstacle struct {
	text       string
	claims     []gpu.UUID // what it should get next
	canCreate  bool       // an instance might be created for it
	mayFitSoon bool       // an instance that is being created may be for it: it is not refused yet
}

// place finds the best place for one more lease of the grant, or says why there is none now.
func place(g *Grant, v *View, o *occupancy) (*Place, *obstacle) {
	return placeFor(g, v, o, requester{})
}

// placeFor is place for a requester.
func placeFor(g *Grant, v *View, o *occupancy, who requester) (*Place, *obstacle) {
	if v.DriverUnavailable != "" {
		return nil, &obstacle{text: "the GPUs cannot be read now: " + v.DriverUnavailable}
	}
	if _, why := who.owes(g); why != "" {
		return nil, &obstacle{text: why}
	}
	if most := g.MaxLeases(); most > 0 && o.live[g.Key()] >= most {
		if most == 1 {
			return nil, &obstacle{text: "its one lease is in use"}
		}
		return nil, &obstacle{text: fmt.Sprintf("all its %d leases are in use", most)}
	}
	switch g.Kind() {
	case api.ModeMIG:
		return placeInstance(g, v, o, who)
	case api.ModeExclusive:
		return placeExclusive(g, v, o, who)
	}
	return placeShare(g, v, o, who)
}

// fullShare is all of one GPU, in percent.
const fullShare = 100

func percentText(f float64) string { return api.Percent(max(f, 0)).String() }
