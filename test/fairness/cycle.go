package fairness

import "time"

// cycle is plain duty cycling: a slice for each lease, one after the other, without regard to what still runs.
type cycle struct {
	on      bool
	current int
}

func (c *cycle) act(n *node) {
	var total float64
	for _, p := range n.processes {
		if p.exists && !p.Outside {
			total += p.Share
		}
	}
	for range n.processes {
		c.current = (c.current + 1) % len(n.processes)
		if p := n.processes[c.current]; p.exists && !p.Outside {
			break
		}
	}
	for i, p := range n.processes {
		switch {
		case !p.exists || p.Outside:
		case i == c.current && p.frozen:
			p.thaw()
		case i != c.current && !p.frozen:
			p.freeze()
		}
	}
	n.wake = n.now() + time.Duration(n.processes[c.current].Share/total*float64(time.Second))
}
