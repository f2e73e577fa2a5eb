package devicepolicy

import (
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/locks"
)

// scopeRules are the device rules that the scopes of leases were given, by lease. The zero value works.
type scopeRules struct {
	mu  locks.Mutex[locks.Leaf] // guards all
	all map[string][]cgroup.DeviceRule
}

// get gives those of a lease; false when nothing is known of it.
func (x *scopeRules) Get(id string) ([]cgroup.DeviceRule, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	rules, ok := x.all[id]
	return rules, ok
}

// set remembers what a lease's scope is closed to.
func (x *scopeRules) Set(id string, rules []cgroup.DeviceRule) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.all = map[string][]cgroup.DeviceRule{}
	}
	x.all[id] = rules
}

// keep forgets the leases that are not among the live ones.
func (x *scopeRules) Keep(live map[string]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.all {
		if !live[id] {
			delete(x.all, id)
		}
	}
}
