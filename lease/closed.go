package lease

import (
	"cmp"
	"fmt"
	"iter"
	"strings"
)

// closedPlaces collects why places take no lease now. The zero value has none.
type closedPlaces struct {
	texts       []string
	reopensSoon bool // one of the GPUs is closed only while an instance is created or removed on it
}

// open are the GPUs that the grant may use and that take leases. Why the others do not is added to closed, unless that is nil.
func (g *Grant) open(v *View, closed *closedPlaces) iter.Seq[*GPUView] {
	return func(yield func(*GPUView) bool) {
		for i := range v.GPUs {
			switch d := &v.GPUs[i]; {
			case !g.mayUse(d):
				if why := g.placedElsewhere(d); why != "" && closed != nil {
					closed.say(d.name(), why)
				}
			case d.Closed != "":
				if closed != nil {
					closed.add(d)
				}
			case !yield(d):
				return
			}
		}
	}
}

func (c *closedPlaces) add(d *GPUView) {
	c.reopensSoon = c.reopensSoon || d.ReopensSoon
	if d.Missing {
		c.texts = append(c.texts, d.name()+" is missing: "+d.Closed)
		return
	}
	c.say(d.name(), d.Closed)
}

func (c *closedPlaces) addInstance(d *GPUView, in *InstanceView, p *part) {
	c.say(fmt.Sprintf("%s at %d on %s", cmp.Or(p.Split, p.Name), in.Placement.Start, d.name()), p.occupied)
}

func (c *closedPlaces) say(place, why string) { c.texts = append(c.texts, place+" is closed: "+why) }

func (c *closedPlaces) any() bool    { return len(c.texts) > 0 }
func (c *closedPlaces) text() string { return strings.Join(c.texts, "; ") }
