package lease

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Entitled computes the share that each lease is entitled to, in percent of its GPU, by lease id. A grant's share is
// split evenly among its leases on a GPU. If the time-sliced shares of the grants with leases on a GPU sum to more than
// 100 % they are weights, and the result is normalised; if they sum to less the rest is not assigned. Leases without a
// share are left out.
func Entitled(leases []Lease) map[string]float64 {
	type where struct {
		gpu gpu.UUID
		key Key
	}
	count := map[where]int{}
	share := map[where]float64{}
	for i := range leases {
		l := &leases[i]
		if l.Terms.share() == nil || !l.State.Live() || len(l.Place.GPUs) != 1 {
			continue
		}
		w := where{l.Place.GPUs[0], l.Terms.Key()}
		count[w]++
		share[w] = max(share[w], l.Terms.percent())
	}
	sum := map[gpu.UUID]float64{}
	for w, s := range share {
		sum[w.gpu] += s
	}
	out := map[string]float64{}
	for i := range leases {
		l := &leases[i]
		if l.Terms.share() == nil || !l.State.Live() || len(l.Place.GPUs) != 1 {
			continue
		}
		w := where{l.Place.GPUs[0], l.Terms.Key()}
		e := share[w] / float64(count[w])
		if total := sum[w.gpu]; l.Terms.Kind() == api.ModeTimeslice && total > fullShare {
			e *= fullShare / total
		}
		out[l.ID] = e
	}
	return out
}
