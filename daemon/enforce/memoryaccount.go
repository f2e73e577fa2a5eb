package enforce

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// accounts are the grants with leases on a GPU, with what each lease uses.
func (en *Enforcer) accounts(leases []lease.Lease, used map[string]*leaseUse) []quota.MemoryAccount {
	var list []quota.MemoryAccount
	for i := range leases {
		l := &leases[i]
		limit := l.Memory() // Next to what other leases of its grant have for themselves.
		if limit == 0 {
			continue
		}
		id := accountOf(l)
		k := slices.IndexFunc(list, func(a quota.MemoryAccount) bool { return a.ID == id })
		if k < 0 {
			k = len(list)
			list = append(list, quota.MemoryAccount{
				ID:           id,
				Limit:        limit,
				Policy:       overuse(l),
				Grace:        graceOf(l),
				HighPriority: priorityOf(l.Terms.Priority) == quota.PriorityHigh,
				DryRun:       !en.State.Desired().Enforcing(),
			})
		}
		list[k].Tightened = list[k].Tightened || l.Terms.Tightened
		use := quota.MemoryUse{
			Lease:       l.ID,
			Payer:       l.Payer(),
			NeverFreeze: !l.Isolation.Freeze || en.Freezer == nil,
			InPlace:     l.InPlace(),
			Job:         l.Engine != nil,
		}
		if u := used[l.ID]; u != nil {
			use.Used = u.memory
		}
		list[k].Leases = append(list[k].Leases, use)
	}
	return list
}

// overuse is what the spec says about a lease that uses too much GPU memory.
func overuse(l *lease.Lease) quota.OverusePolicy {
	if l.Terms.Overuse == nil || l.Terms.Overuse.GPUMemory == "" {
		return quota.OverusePolicy(api.DefaultOveruse)
	}
	return quota.OverusePolicy(l.Terms.Overuse.GPUMemory)
}

// Overuse returns what happens to a lease that uses too much GPU memory: nothing on a node that only observes.
func (en *Enforcer) Overuse(l *lease.Lease) quota.OverusePolicy {
	if !en.State.Desired().Enforcing() {
		return quota.OveruseObserve
	}
	return overuse(l)
}

func graceOf(l *lease.Lease) time.Duration {
	if o := l.Terms.Overuse; o != nil && o.Grace != nil {
		return time.Duration(*o.Grace)
	}
	return time.Duration(api.DefaultOveruseGrace)
}
