package metrics

import (
	"time"

	"github.com/gpushare/gpushare/api"
)

// idleAfter is how long GPU memory was not used before it counts as idle here: shorter pauses would make a graph of them restless.
const idleAfter = 10 * time.Minute

type useKey struct{ gpu, tenant, user string }

// uses adds up what users hold, by GPU and tenant.
func (c *collection) uses(all []api.IdleUse) {
	held, longest, outside := map[useKey]map[string]uint64{}, map[useKey]float64{}, map[useKey]*uint64{}
	for i := range all {
		h := &all[i]
		if h.Lease == "" && h.Used == nil {
			continue // How much it is is not known.
		}
		key := useKey{h.GPU, h.Tenant, h.User}
		if held[key] == nil {
			held[key] = map[string]uint64{}
		}
		use := h.State
		if h.IdleSeconds != nil {
			longest[key] = max(longest[key], *h.IdleSeconds)
			if *h.IdleSeconds < idleAfter.Seconds() {
				use = api.UseBusy
			}
		}
		held[key][use] += h.Held
		if h.Lease == "" {
			outside[key] = h.Used
		}
	}
	for key, of := range held {
		index := c.index[key.gpu]
		for _, use := range []string{api.UseBusy, api.UseIdle, api.UseUnknown} {
			c.add(heldMemory, float64(of[use]), index, key.gpu, key.tenant, key.user, use)
		}
		if at, ok := longest[key]; ok {
			c.add(heldIdle, at, index, key.gpu, key.tenant, key.user)
		}
		if used := outside[key]; used != nil {
			c.add(outsideMemory, float64(*used), index, key.gpu, key.user)
		}
	}
}
