package lease

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/text"
)

// placeExclusive chooses idle GPUs, those reserved for the grant first, then in the driver's order.
func placeExclusive(g *Grant, v *View, o *occupancy, who requester) (*Place, *obstacle) {
	var own, idle, lent, claims []gpu.UUID
	var closed closedPlaces
	open, claimed := 0, 0
	for d := range g.open(v, &closed) {
		t := o.at(d.UUID)
		if why := cmp.Or(d.Occupied, t.exclusive.memoryInNoProcess(d.InNoProcess)); why != "" && !who.inPlace {
			closed.say(d.name(), why)
			continue
		}
		reservedForGrant := t.exclusive != nil && t.exclusive.reserved != nil && *t.exclusive.reserved == g.Key()
		if reservedForGrant || t.exclusive == nil || t.exclusive.reserved == nil {
			open++
		}
		switch {
		case !t.exclusive.freeFor(g.Key()):
		case reservedForGrant:
			own = append(own, d.UUID)
		case t.claimedBefore(&who):
			claimed++
		case t.claimed:
			lent = append(lent, d.UUID)
		default:
			idle = append(idle, d.UUID)
			claims = append(claims, d.UUID)
		}
	}
	n := g.Spec.Exclusive
	if have := slices.Concat(own, idle, lent); len(have) >= n {
		return takeExclusive(have, n, v, who)
	}
	ob := &obstacle{text: fmt.Sprintf("%d exclusive %s requested, %d idle", n, text.Plural(n, "GPU"), len(own)+len(idle)+len(lent))}
	if claimed > 0 {
		ob.text += fmt.Sprintf(" (%d more are claimed by an earlier request)", claimed)
	}
	if closed.any() {
		ob.text += "; " + closed.text()
	}
	if open >= n { // else only an administrator can free them: the request does not wait for that
		ob.claims = claims
	}
	return nil, ob
}

// takeExclusive takes n of the GPUs that a request may have, the first ones of them.
func takeExclusive(have []gpu.UUID, n int, v *View, who requester) (*Place, *obstacle) {
	if who.limit.Memory > 0 { // The smallest first: the user may not have larger ones.
		slices.SortStableFunc(have, func(a, b gpu.UUID) int { return cmp.Compare(v.gpu(a).Capacity, v.gpu(b).Capacity) })
	}
	got := have[:n]
	slices.SortFunc(got, func(a, b gpu.UUID) int { return cmp.Compare(v.index(a), v.index(b)) })
	p := &Place{GPUs: got, Devices: slices.Clone(got)}
	if memory := placeMemory(p, v); memory > who.left() {
		return nil, who.tooMuch(memory)
	}
	return p, nil
}
