package attribution

import (
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/lease"
)

// VisitPort is what holds a lease whose processes stay where they are: their cgroup, or the tree under one process.
func (attr *Attribution) VisitPort(l *lease.Lease) cgroup.Port {
	if l.Cgroup != "" {
		return attr.Visitors
	}
	return attr.Follow
}
