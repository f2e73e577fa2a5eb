package engines

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/lease"
)

// naming has the cgroups that requests are about to give to their leases, by the key: they are in the table a moment later.
type naming struct {
	mu    locks.Mutex[locks.Leaf] // guards what follows
	named map[string]string
}

// begin is the key of another request that names one of the processes of a cgroup too; empty: there is none, and end must be called.
func (n *naming) begin(key, cg string) (other string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, named := range n.named {
		if k != key && overlap(named, cg) {
			return k
		}
	}
	if n.named == nil {
		n.named = map[string]string{}
	}
	n.named[key] = cg
	return ""
}

func (n *naming) end(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.named, key)
}

// overlap reports whether a process may be in both cgroups.
func overlap(a, b string) bool { return cgroup.Below(a, b) || cgroup.Below(b, a) }

// named gives the processes of a cgroup to the lease of a key until end is called, when the lease has the cgroup or the request has
// failed. A cgroup that another keyed lease names is refused, also while neither has a process if that one is kept: a process is in one
// lease, and the amounts of the other one would be enforced on nothing. former are the leases that have named it and have no processes.
func (en *Engines) named(key, cg string) (end func(), former []lease.Lease, err error) {
	other := en.naming.begin(key, cg)
	if other != "" {
		return nil, nil, namedTwice(key, cg, "another request, with key "+other+", names it", other)
	}
	end = func() { en.naming.end(key) }
	has := en.Table.LiveOnly(func(l *lease.Lease) bool {
		// One that is ending has no processes to give: a job that its engine starts again is not refused for the lease of its former run.
		return l.Engine != nil && l.Engine.Key != key && l.State != lease.Ending &&
			slices.ContainsFunc(l.Cgroups(), func(had string) bool { return overlap(had, cg) })
	})
	for i := range has {
		if l := &has[i]; l.Cgroup != cg || !en.left(l) {
			end()
			return nil, nil, namedTwice(
				key,
				cg,
				fmt.Sprintf("lease %s (%s) has it, and a process is in one lease", l.ID, l.Engine.Key),
				l.Engine.Key,
			)
		}
	}
	return end, has, nil
}

// left reports whether a lease that ends with its processes has none: it is of a former run of the job, and its end was not reported, as
// while no daemon ran. The next run is not without a lease for that.
func (en *Engines) left(l *lease.Lease) bool {
	if l.Kept() {
		return false
	}
	h, err := en.Hierarchy()
	if err != nil {
		return false
	}
	there, err := h.Populated(l.Cgroup)
	return !there && (err == nil || errors.Is(err, cgroup.ErrNotFound))
}

// dropFormer ends leases that wait for processes in a cgroup that is another lease's now: they would be bound to those of that one. A lease
// that had processes ends without them by itself.
func (en *Engines) dropFormer(ctx context.Context, former []lease.Lease, key string) {
	for i := range former {
		en.drop(ctx, &former[i], "its cgroup was named for "+key)
	}
}

func namedTwice(key, cg, why, other string) error {
	return &api.Error{
		Kind:    api.KindConflict,
		Message: fmt.Sprintf("cannot attach %s to cgroup %s: %s", key, cg, why),
		Hint:    "'gpushare lease show --key " + other + "' shows it",
	}
}
