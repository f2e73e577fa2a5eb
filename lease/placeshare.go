package lease

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// shareCandidate is a GPU or an instance of which a lease may have a share.
type shareCandidate struct {
	divisible
	over   int  // 1 if the shares of reserved grants would be more than the GPU's time
	lent   bool // as of an instance
	share  float64
	memory uint64
	leases int
}

// placeShare chooses the least loaded GPU: by the sum of shares, then by granted memory, then by leases. A reserved grant
// avoids a GPU whose time other reserved grants need.
func placeShare(g *Grant, v *View, o *occupancy, who requester) (*Place, *obstacle) {
	var found []shareCandidate
	var closed closedPlaces
	var lacks shareLacks
	for d := range g.open(v, &closed) {
		for _, dev := range g.divisibles(d) {
			if why := dev.unusable(o); why != "" {
				closed.say(dev.String(), why)
				continue
			}
			if more := who.more(g, dev.place()); more > who.left() {
				lacks.tooMuch = who.tooMuch(more)
				continue
			}
			if c := g.shareOf(dev, o, who, &lacks); c != nil {
				found = append(found, *c)
			}
		}
	}
	if len(found) == 0 {
		return nil, lacks.obstacle(g, &closed)
	}
	best := slices.MinFunc(found, func(a, b shareCandidate) int {
		return cmp.Or(
			cmp.Compare(a.over, b.over), compareBool(a.lent, b.lent), cmp.Compare(a.share, b.share), cmp.Compare(a.memory, b.memory),
			cmp.Compare(a.leases, b.leases), cmp.Compare(a.gpu.Index, b.gpu.Index),
		)
	})
	return best.place(), nil
}

// shareOf is what a lease of the grant would have there; nil, with what it lacks, if it cannot have a share.
func (g *Grant) shareOf(dev divisible, o *occupancy, who requester, lacks *shareLacks) *shareCandidate {
	d, key := dev.gpu, g.Key()
	t, whole := o.shared(dev.place(), d.UUID), o.at(d.UUID)
	own := t.shares[key]
	memory, share := t.granted(key, false)
	unfree := t.unfree(&dev)
	if short := dev.shortOf(g.memory(), memory, unfree); short > 0 { // What all its leases here have together counts once.
		lacks.memory(&dev, short, unfree)
		return nil
	}
	use := func(id string) *uint64 { return o.memoryUsed(id, d.UUID) }
	if why := own.refuses(g, &who, use); why != "" {
		lacks.soon(d, fmt.Sprintf("%v: %s", &dev, why))
		return nil
	}
	memory += unfree
	if !d.Overcommit && g.Kind() == api.ModeMPS && share+g.percent() > fullShare {
		lacks.soon(d, fmt.Sprintf("%v has %s of its threads left", &dev, percentText(fullShare-share)))
		return nil
	}
	if left := t.lowLatencyLeft(key, false); !g.fitsLowLatency(left) {
		lacks.soon(d, fmt.Sprintf("%v has %s", &dev, lowLatencyText(left)))
		return nil
	}
	if why := g.notHard(d, t); why != "" {
		lacks.say(fmt.Sprintf("%v has no hard limit of GPU memory: %s", &dev, why))
		return nil
	}
	if why := dev.heldBack(g.Tenant); why != "" {
		lacks.say(fmt.Sprintf("%v: %s", &dev, why))
		return nil
	}
	if why := cmp.Or(t.otherUser(&dev, who), t.tooManyClients(&dev, g)); why != "" {
		lacks.soon(d, why)
		return nil
	}
	if whole.claimedBefore(&who) && (whole.preempted[key] || dev.oneUser() != "" || !own.outlasts(&who)) {
		lacks.say(fmt.Sprintf("%s is claimed by an earlier request", d.name()))
		return nil
	}
	c := &shareCandidate{divisible: dev, lent: whole.claimed, share: share, memory: memory}
	if g.Spec.Reserved && t.oversubscribedBy(g, d) {
		c.over = 1
	}
	for _, s := range t.shares {
		c.leases += s.leases
	}
	if own != nil && own.leases > 0 {
		c.share, c.memory = c.share+own.share, c.memory+own.memory
	}
	return c
}

// shortOf is how much memory lacks for a grant, next to what the other grants have and what is used and in no process. With overcommit
// the grants, and each of them alone, may have more than there is, but no lease gets what is in no process.
func (v *divisible) shortOf(need, granted, unfree uint64) uint64 {
	want := need + granted + unfree
	if v.gpu.Overcommit {
		want = min(need, v.budget()) + unfree
	}
	return want - min(want, v.budget())
}

// shareLacks collects why a grant has no share now.
type shareLacks struct {
	texts    []string
	nearest  *GPUView // that lacks least
	shortest uint64
	tooMuch  *obstacle
}

func (x *shareLacks) say(text string) { x.texts = append(x.texts, text) }

// soon is a lack that may end with any lease there.
func (x *shareLacks) soon(d *GPUView, text string) {
	x.say(text)
	if x.nearest == nil {
		x.nearest, x.shortest = d, 0
	}
}

func (x *shareLacks) memory(dev *divisible, short, unfree uint64) {
	text := fmt.Sprintf("%v lacks %s of memory", dev, api.Bytes(short).Short())
	if unfree > 0 {
		text += fmt.Sprintf(" (%s are used, and in no process)", api.Bytes(unfree).Short())
	}
	x.say(text)
	if x.nearest == nil || short < x.shortest {
		x.nearest, x.shortest = dev.gpu, short
	}
}

// obstacle is all of it.
func (x *shareLacks) obstacle(g *Grant, closed *closedPlaces) *obstacle {
	if x.tooMuch != nil {
		x.say(x.tooMuch.text)
	}
	if closed.any() {
		x.say(closed.text())
	}
	ob := &obstacle{text: strings.Join(x.texts, "; ")}
	if ob.text == "" {
		ob.text = "no GPU is in mode " + g.Spec.Mode() + " now"
		if g.Spec.InInstance() {
			ob.text = "there is no " + g.requirement() + " instance with MPS now"
		}
	}
	if x.nearest != nil {
		ob.claims = []gpu.UUID{x.nearest.UUID}
	}
	return ob
}
