package lease

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Oversubscribed is a time-sliced GPU on which the shares of live and reserved grants add up to more than 100 %.
type Oversubscribed struct {
	GPU    gpu.UUID
	Index  int
	Total  float64 // in percent
	Grants []GrantedShare
}

// GrantedShare is the share of one grant on a GPU, and what it gets while all grants there have work, in percent.
type GrantedShare struct {
	Key
	Share, Gets float64
}

// Text describes it in one line.
func (o *Oversubscribed) Text() string {
	var parts []string
	for _, g := range o.Grants {
		parts = append(parts, fmt.Sprintf("%s/%s %s gets %.0f%%", g.Tenant, g.Grant, percentText(g.Share), g.Gets))
	}
	return fmt.Sprintf(
		"shares on GPU %d add up to %s: while all have work, %s", o.Index, percentText(math.Round(o.Total*100)/100),
		strings.Join(parts, ", "),
	)
}

// Oversubscribed returns the oversubscribed GPUs, in the driver's order. Shares under MPS are not weights, and are never
// oversubscribed without overcommit.
func (t *Table) Oversubscribed() []Oversubscribed {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.liveLocked()
	t.addReservedLocked(o, func(*Grant) bool { return true })
	return o.oversubscribed(&t.view)
}

// OversubscribedUnder returns what Oversubscribed would return with another spec: with the shares of its grants and the
// leases that are live now.
func (t *Table) OversubscribedUnder(v View) []Oversubscribed {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, places := newOccupancy(), map[Key][]Place{}
	for _, e := range t.sortedLocked() {
		terms := e.Terms
		if i := slices.IndexFunc(v.Grants, func(g Grant) bool { return g.Key() == terms.Key() }); i >= 0 &&
			v.Grants[i].Kind() == terms.Kind() {
			terms.Spec.Timeslice, terms.Spec.Latency = v.Grants[i].Spec.Timeslice, v.Grants[i].Spec.Latency
		}
		o.add(&terms, &e.Place, false)
		places[terms.Key()] = append(places[terms.Key()], e.Place)
	}
	reserve(&v, o, t.reserved, places)
	return o.oversubscribed(&v)
}

func (o *occupancy) oversubscribed(v *View) []Oversubscribed {
	var out []Oversubscribed
	for i := range v.GPUs {
		d := &v.GPUs[i]
		_, total := o.at(d.UUID).granted(Key{}, false)
		if d.Mode != api.ModeTimeslice || total <= fullShare+shareTolerance {
			continue
		}
		over := Oversubscribed{GPU: d.UUID, Index: d.Index, Total: total}
		low := mostLowLatency - o.at(d.UUID).lowLatencyLeft(Key{}, false)
		for k, s := range o.at(d.UUID).shares {
			gets := s.lowLatency
			if gets == 0 {
				gets = s.share * (fullShare - low) / (total - low)
			}
			over.Grants = append(over.Grants, GrantedShare{Key: k, Share: s.share, Gets: gets})
		}
		slices.SortFunc(over.Grants, func(a, b GrantedShare) int {
			return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Grant, b.Grant))
		})
		out = append(out, over)
	}
	return out
}

// Entitled computes the share that each lease is entitled to, in percent of its GPU or its shared instance, by lease id. A
// grant's share is split evenly among its leases there. If the time-sliced shares of the grants with leases on a GPU sum to
// more than 100 % they are weights, and the result is normalised, except for those with latency: low, which have it whole; if they sum
// to less the rest is not assigned. Leases without a share are left out.
func Entitled(leases []Lease) map[string]float64 {
	count, own := map[grantOn]int{}, map[grantOn]*ownUse{}
	share, low := map[grantOn]float64{}, map[grantOn]float64{}
	for i := range leases {
		l := &leases[i]
		if l.Terms.share() == nil || !l.State.Live() || len(l.Place.GPUs) != 1 {
			continue
		}
		w := l.Place.on(l.Terms.Key(), l.Place.GPUs[0])
		count[w]++
		if own[w] == nil {
			own[w] = &ownUse{}
		}
		own[w].add(l.Own)
		share[w] = max(share[w], l.Terms.percent())
		low[w] = max(low[w], l.Terms.lowLatency())
	}
	sum, whole := map[gpu.UUID]float64{}, map[gpu.UUID]float64{}
	for w, s := range share {
		sum[w.gpu] += s
		whole[w.gpu] += low[w]
	}
	out := map[string]float64{}
	for i := range leases {
		l := &leases[i]
		if l.Terms.share() == nil || !l.State.Live() || len(l.Place.GPUs) != 1 {
			continue
		}
		w := l.Place.on(l.Terms.Key(), l.Place.GPUs[0])
		e := own[w].entitled(l, share[w], count[w])
		if total, kept := sum[w.gpu], whole[w.gpu]; l.Terms.Kind() == api.ModeTimeslice && total > fullShare && low[w] == 0 {
			e *= (fullShare - kept) / (total - kept)
		}
		out[l.ID] = e
	}
	return out
}
