package api

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ReservedTwice finds reserved grants that name the same one GPU in the same way, and whose shares add up to more than
// 100 % of it without overcommit. Whether different selectors mean the same GPU is only known on the node.
func (s *Spec) ReservedTwice() FieldErrors {
	c := &checker{}
	sum, names := map[namedGPU]float64{}, map[namedGPU][]string{}
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
			if len(where) != 1 || s.mayOvercommit(where[0]) {
				continue
			}
			key := where[0]
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
