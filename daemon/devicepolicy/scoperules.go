package devicepolicy

import (
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/locks"
)

// scopeRules are the device rules of the scopes of leases, by lease. The zero value works.
type scopeRules struct {
	mu  locks.Mutex[locks.Leaf] // protects all
	all map[string][]cgroup.DeviceRule
}

// Get returns the rules of a lease; false when they are not known.
func (x *scopeRules) Get(id string) ([]cgroup.DeviceRule, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	rules, ok := x.all[id]
	return rules, ok
}

// Set records the rules of a lease.
func (x *scopeRules) Set(id string, rules []cgroup.DeviceRule) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.all = map[string][]cgroup.DeviceRule{}
	}
	x.all[id] = rules
}

// Keep forgets the leases that are not live.
func (x *scopeRules) Keep(live map[string]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.all {
		if !live[id] {
			delete(x.all, id)
		}
	}
}
