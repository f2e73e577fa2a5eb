package lease

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
)

// Own is what a lease has of the amounts of its grant for itself alone. The other leases of the grant have together what is left. The
// zero value: it has none, as leases that no engine requested.
type Own struct {
	Memory uint64  `json:"gpu_memory,omitempty"` // bytes
	Share  float64 `json:"share,omitempty"`      // in percent
}

// Memory is the GPU memory that the lease has: its own amount, or that of all leases of its grant together; 0 without a limit.
func (l *Lease) Memory() uint64 {
	granted := l.Terms.memory()
	if l.Own.Memory > 0 && granted > 0 {
		return min(l.Own.Memory, granted) // The grant may have less by now.
	}
	return granted
}

// ownUse is what the leases of a grant on one GPU have for themselves.
type ownUse struct {
	sum            Own
	memory, shares int // leases with an amount of their own
}

func (u *ownUse) add(o Own) {
	if o.Memory > 0 {
		u.sum.Memory += o.Memory
		u.memory++
	}
	if o.Share > 0 {
		u.sum.Share += o.Share
		u.shares++
	}
}

// lacks is why a lease with these amounts of its own does not fit into its grant next to the other leases; empty if it does. Leases
// without an amount of their own keep something.
func (u *ownUse) lacks(g *Grant, leases int, want Own) string {
	others := leases - u.memory
	left := g.memory() - min(u.sum.Memory, g.memory())
	switch {
	case g.memory() == 0:
	case want.Memory > left || want.Memory == left && want.Memory > 0 && others > 0 || want.Memory == 0 && left == 0:
		return fmt.Sprintf(
			"grant %s has %s of its %s left: the rest is of leases with an amount of their own", g.Spec.Name,
			api.Bytes(left).Short(), api.Bytes(g.memory()).Short(),
		)
	}
	others = leases - u.shares
	share := max(g.percent()-u.sum.Share, 0)
	if want.Share > share+shareTolerance || want.Share > share-shareTolerance && want.Share > 0 && others > 0 ||
		want.Share == 0 && share < shareTolerance && g.percent() > 0 {
		return fmt.Sprintf(
			"grant %s has %s of its %s left: the rest is of leases with a share of their own", g.Spec.Name, percentText(share),
			percentText(g.percent()),
		)
	}
	return ""
}

// exceeds is why a grant cannot give a lease these amounts at all; empty if it can.
func (o Own) exceeds(g *Grant) string {
	switch s := g.share(); {
	case o == (Own{}):
	case s == nil:
		return fmt.Sprintf("grant %s is of whole GPUs or instances: a lease has no part of them", g.Spec.Name)
	case o.Memory > 0 && s.GPUMemory == nil:
		return fmt.Sprintf("grant %s has no gpu_memory", g.Spec.Name)
	case o.Memory > g.memory():
		return fmt.Sprintf("grant %s has %s", g.Spec.Name, api.Bytes(g.memory()).Short())
	case o.Share > g.percent():
		return fmt.Sprintf("grant %s has %s", g.Spec.Name, percentText(g.percent()))
	}
	return ""
}

// entitled is the part of the grant's share, in percent, that one of its leases on a GPU has.
func (u *ownUse) entitled(l *Lease, share float64, leases int) float64 {
	if l.Own.Share > 0 {
		return min(l.Own.Share, share)
	}
	return max(share-u.sum.Share, 0) / float64(max(leases-u.shares, 1))
}
