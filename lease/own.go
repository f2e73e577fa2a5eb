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

// Memory is the GPU memory that the lease has: its own amount, or what the leases of its grant have together that have none; 0 without a
// limit.
func (l *Lease) Memory() uint64 {
	granted := l.Terms.memory()
	switch {
	case granted == 0:
		return 0
	case l.Own.Memory > 0:
		return uint64(kept(float64(l.Own.Memory), float64(l.OwnTogether.Memory), float64(granted)))
	}
	return max(granted-min(l.OwnTogether.Memory, granted), 1) // A limit of 0 would be none.
}

// Share is the share that the lease has, in percent: its own, or what the leases of its grant have together that have none.
func (l *Lease) Share() float64 {
	granted := l.Terms.percent()
	if l.Own.Share > 0 {
		return kept(l.Own.Share, l.OwnTogether.Share, granted)
	}
	return max(granted-l.OwnTogether.Share, 0)
}

// kept is an own amount as far as the grant has it: it may have less by now than its leases have for themselves together, and each has
// its part of that.
func kept(own, together, granted float64) float64 {
	if together = max(together, own); together <= granted {
		return own
	}
	return own * granted / together
}

// Loses is what the lease loses when its grant has other amounts from now on: of what it has for itself, or all of what the leases with
// amounts of their own leave to the others. Empty: nothing.
func (l *Lease) Loses(now *Grant) string {
	if l.Terms.share() == nil || now.Kind() != l.Terms.Kind() {
		return ""
	}
	memory := func(f float64) string { return api.Bytes(f).Short() }
	own, together := l.Own, l.OwnTogether
	if now.memory() == 0 && l.Terms.memory() > 0 && own.Memory > 0 {
		return fmt.Sprintf("its own %s of GPU memory end: grant %s has no gpu_memory", api.Bytes(own.Memory).Short(), now.Spec.Name)
	}
	if now.memory() > 0 {
		why := loses(
			"GPU memory",
			now,
			memory,
			float64(l.Terms.memory()),
			float64(now.memory()),
			float64(own.Memory),
			float64(together.Memory),
		)
		if why != "" {
			return why
		}
	}
	return loses("share", now, percentText, l.Terms.percent(), now.percent(), own.Share, together.Share)
}

// loses is Loses for one amount.
func loses(what string, g *Grant, text func(float64) string, was, now, own, together float64) string {
	switch {
	case now >= was:
	case own > 0 && together > now:
		return fmt.Sprintf(
			"it keeps %s of its own %s of %s: grant %s has %s, and its leases have %s for themselves", text(kept(own, together, now)),
			text(own), what, g.Spec.Name, text(now), text(together),
		)
	case own == 0 && together > 0 && together >= now:
		return fmt.Sprintf(
			"no %s is left for it: grant %s has %s, and other leases have %s for themselves", what, g.Spec.Name, text(now), text(together),
		)
	}
	return ""
}

// ownUse is what the leases of a grant on one GPU have for themselves.
type ownUse struct {
	sum            Own
	memory, shares int      // leases with an amount of their own
	others         []string // ids of leases with processes and without memory of their own
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

// ownLocked is what the leases of each grant have for themselves together.
func (t *Table) ownLocked() map[grantOn]Own {
	var out map[grantOn]Own // nil on most nodes: every reading of a lease calls this
	for _, e := range t.leases {
		if e.Own == (Own{}) || len(e.Place.GPUs) != 1 {
			continue
		}
		if out == nil {
			out = map[grantOn]Own{}
		}
		on := e.Place.on(e.Terms.Key(), e.Place.GPUs[0])
		out[on] = Own{out[on].Memory + e.Own.Memory, out[on].Share + e.Own.Share}
	}
	return out
}

// copyNextTo is a copy of the lease next to what leases have for themselves.
func (l *Lease) copyNextTo(own map[grantOn]Own) Lease {
	c := l.clone()
	c.OwnTogether = Own{}
	if len(l.Place.GPUs) == 1 {
		c.OwnTogether = own[l.Place.on(l.Terms.Key(), l.Place.GPUs[0])]
	}
	return c
}

// takes is why a lease may not have this memory for itself: the leases that have none use more than they would keep. Empty if it may.
func (u *ownUse) takes(g *Grant, want Own, use func(id string) *uint64) string {
	if want.Memory == 0 || g.memory() == 0 {
		return ""
	}
	left, used := g.memory()-min(u.sum.Memory, g.memory()), uint64(0)
	for _, id := range u.others {
		n := use(id)
		if n == nil {
			return fmt.Sprintf("how much of the memory of grant %s its lease %s uses is not known", g.Spec.Name, id)
		}
		used += *n
	}
	if want.Memory+used <= left {
		return ""
	}
	return fmt.Sprintf(
		"grant %s has %s of its %s left, and its leases without an amount of their own use %s of it", g.Spec.Name,
		api.Bytes(left).Short(), api.Bytes(g.memory()).Short(), api.Bytes(used).Short(),
	)
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
		return kept(l.Own.Share, u.sum.Share, share)
	}
	return max(share-u.sum.Share, 0) / float64(max(leases-u.shares, 1))
}
