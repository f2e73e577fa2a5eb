package api

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ReservedTwice finds reserved grants that name the same one GPU in the same way, and whose shares add up to more than
// 100 % of it without overcommit, or those with latency: low to more than they may have together. Whether different selectors mean
// the same GPU is only known on the node.
func (s *Spec) ReservedTwice() FieldErrors {
	c := &checker{}
	sum, names, low := map[namedGPU]float64{}, map[namedGPU][]string{}, lowLatencyGrants{}
	for i := range s.Tenants {
		for j := range s.Tenants[i].Grants {
			g := &s.Tenants[i].Grants[j]
			share, kind := g.Timeslice, g.Kind()
			if kind == ModeMPS {
				share = g.MPS
			}
			if !g.Reserved || share == nil || g.GPUs == nil {
				continue
			}
			where := g.GPUs.named()
			if len(where) != 1 {
				continue
			}
			key := where[0]
			if g.LowLatency() {
				low.add(c, key, fmt.Sprintf("tenants[%d].grants[%d]", i, j), s.Tenants[i].Name, g)
			}
			if s.mayOvercommit(key) {
				continue
			}
			sum[key] += float64(share.Share)
			names[key] = append(names[key], fmt.Sprintf("%s/%s %s", s.Tenants[i].Name, g.Name, share.Share))
			if sum[key] > 100+1e-9 {
				c.add(
					fmt.Sprintf("tenants[%d].grants[%d].%s.share", i, j, kind),
					"the reserved grants on GPU %s need %s together; it has 100%% (%s): grant less, reserve fewer grants, or write overcommit: true for that GPU",
					key.name,
					Percent(math.Round(sum[key]*100)/100),
					strings.Join(names[key], ", "),
				)
			}
		}
	}
	return c.found
}

// lowLatencyGrants are the reserved grants with latency: low of each GPU.
type lowLatencyGrants map[namedGPU][]lowLatencyGrant

type lowLatencyGrant struct {
	name  string
	share Percent
}

// add adds a grant of a GPU, and a finding if its grants are too much with it. No overcommit helps: a lease with latency: low has the
// time of its share, and not a part of the sum.
func (l lowLatencyGrants) add(c *checker, on namedGPU, at, tenant string, g *GrantSpec) {
	l[on] = append(l[on], lowLatencyGrant{tenant + "/" + g.Name, g.Timeslice.Share})
	var sum float64
	names := make([]string, 0, len(l[on]))
	for _, x := range l[on] {
		sum += float64(x.share)
		names = append(names, x.name+" "+x.share.String())
	}
	if len(names) == 1 || sum <= float64(MostLowLatency)+1e-9 {
		return // What one alone has is checked with it.
	}
	c.add(
		at+".timeslice.share",
		"the reserved grants with latency: low on GPU %s need %s together, and may have %s (%s): grant less, or leave out reserved or latency",
		on.name,
		Percent(math.Round(sum*100)/100),
		MostLowLatency,
		strings.Join(names, ", "),
	)
}

// namedGPU is a GPU as a selector names it.
type namedGPU struct{ by, name string }

// named returns the GPUs that the selector names one by one; none for a model or for all.
func (s *Selector) named() (out []namedGPU) {
	for _, u := range s.UUID {
		out = append(out, namedGPU{"uuid", strings.ToLower(u)})
	}
	for _, p := range s.PCI {
		canonical, _ := CanonicalPCI(p)
		out = append(out, namedGPU{"pci", canonical})
	}
	for _, n := range s.Index {
		out = append(out, namedGPU{"index", strconv.Itoa(n)})
	}
	return out
}

// mayOvercommit reports whether an entry with overcommit may be about the GPU: it names it, or it does not name its GPUs
// in the same way.
func (s *Spec) mayOvercommit(where namedGPU) bool {
	return slices.ContainsFunc(s.GPUs, func(g GPUSpec) bool {
		named := g.Select.named()
		other := len(named) == 0 || named[0].by != where.by
		return g.Overcommit && (other || slices.Contains(named, where))
	})
}

// Oversubscribed says which grants that name the same one GPU have shares that add up to more than 100 % of it. It is no mistake: they are
// weights then. What is reserved beyond that is one (ReservedTwice), and what GPU memory there is, is only known on the node.
func (s *Spec) Oversubscribed() (out []string) {
	sum, names := map[namedGPU]float64{}, map[namedGPU][]string{}
	var order []namedGPU
	for i := range s.Tenants {
		for j := range s.Tenants[i].Grants {
			g := &s.Tenants[i].Grants[j]
			share := g.Timeslice
			if g.Kind() == ModeMPS {
				share = g.MPS
			}
			where, ok := s.onlyGPU(g)
			if share == nil || g.InInstance() || !ok || s.mayOvercommit(where) {
				continue
			}
			if sum[where] == 0 {
				order = append(order, where)
			}
			sum[where] += float64(share.Share)
			names[where] = append(names[where], fmt.Sprintf("%s/%s %s", s.Tenants[i].Name, g.Name, share.Share))
		}
	}
	for _, where := range order {
		if sum[where] > 100+1e-9 {
			out = append(out, fmt.Sprintf(
				"the grants on GPU %s need %s together; it has 100%% (%s): not all get their share at the same time", where.name,
				Percent(math.Round(sum[where]*100)/100), strings.Join(names[where], ", "),
			))
		}
	}
	return out
}

// onlyGPU returns the GPU that a grant names, or the one of its mode if the spec names just that one; ok is false if it may be on others.
func (s *Spec) onlyGPU(g *GrantSpec) (where namedGPU, ok bool) {
	if g.GPUs != nil {
		named := g.GPUs.named()
		if len(named) != 1 {
			return where, false
		}
		return named[0], true
	}
	var named []namedGPU
	for i := range s.GPUs {
		if s.GPUs[i].Mode != g.Kind() {
			continue
		}
		here := s.GPUs[i].Select.named()
		if len(here) == 0 {
			return where, false
		}
		named = append(named, here...)
	}
	if len(named) != 1 {
		return where, false
	}
	return named[0], true
}
