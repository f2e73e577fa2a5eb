package gpusim

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// maxLinks is the number of link numbers that the library knows, in both versions.
const maxLinks = 18

// The device types at the other end of a link, as the vendor's header numbers them.
const (
	endGPU    = 0
	endSwitch = 2
)

// maxSwitches is the largest number of NVSwitches of any system.
const maxSwitches = 6

// checkLinks checks the bridges and switches.
func (n *Node) checkLinks() error {
	if n.cfg.Switches < 0 || n.cfg.Switches > maxSwitches {
		return fmt.Errorf("the number of NVSwitches must be 0 to %[2]d, not %[1]d", n.cfg.Switches, maxSwitches)
	}
	for _, b := range n.cfg.Bridges {
		if len(b) < 2 {
			return fmt.Errorf("the bridge %v does not connect two GPUs", b)
		}
		for i, index := range b {
			switch {
			case index < 0 || index >= len(n.devices):
				return fmt.Errorf("the bridge %v names a GPU that does not exist", b)
			case slices.Contains(b[:i], index):
				return fmt.Errorf("the bridge %v names GPU %d twice", b, index)
			case n.devices[index].model.NVLinks == 0:
				return fmt.Errorf("the bridge %v is on GPU %d, but %s has no NVLinks", b, index, n.devices[index].model.Name)
			}
		}
	}
	for _, g := range n.devices {
		if peers := len(g.peers()); peers > g.model.NVLinks {
			return fmt.Errorf("GPU %d is connected with %d others, but has %d NVLinks", g.index, peers, g.model.NVLinks)
		}
	}
	return nil
}

// peers returns the GPUs that bridges connect with this one.
func (g *device) peers() []*device {
	var out []*device
	for _, b := range g.node.cfg.Bridges {
		if !slices.Contains(b, g.index) {
			continue
		}
		for _, i := range b {
			if i >= len(g.node.devices) {
				continue // It was removed.
			}
			if other := g.node.devices[i]; other != g && !slices.Contains(out, other) {
				out = append(out, other)
			}
		}
	}
	return out
}

// switchAddress returns the PCI address of an NVSwitch.
func switchAddress(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0xc4+i) }

// linkEnd is the device at the other end of a link.
type linkEnd struct {
	kind   uint64
	pci    string
	device uint32 // the PCI device's id, 0 for a switch
}

// link returns the device at the other end of one link, nil if the link is down. Links are distributed over the peers or
// switches in turn.
func (g *device) link(number int) *linkEnd {
	if peers := g.peers(); len(peers) > 0 {
		to := peers[number%len(peers)]
		return &linkEnd{endGPU, to.cfg.PCI, to.model.PCIDevice}
	}
	if n := g.node.cfg.Switches; n > 0 {
		return &linkEnd{kind: endSwitch, pci: switchAddress(number % n)}
	}
	return nil
}

// onLink makes a call on a link of a GPU.
func (q *call) onLink(t target, body func(to *linkEnd) Ret) Ret {
	switch number := q.args[1]; {
	case number >= maxLinks:
		return InvalidArgument
	case number >= uint64(t.g.model.NVLinks):
		return NotSupported
	default:
		return body(t.g.link(int(number)))
	}
}

// linkState, linkKind and linkPCI answer the calls on one link. The device at the end of a link that is down is not
// reported.
func (q *call) linkState(t target) Ret {
	return q.onLink(t, func(to *linkEnd) Ret {
		if to == nil {
			return q.out.put(0)
		}
		return q.out.put(1)
	})
}

func (q *call) linkKind(t target) Ret {
	return q.onLink(t, func(to *linkEnd) Ret {
		if to == nil {
			return NotSupported
		}
		return q.out.put(to.kind)
	})
}

func (q *call) linkPCI(t target) Ret {
	return q.onLink(t, func(to *linkEnd) Ret {
		if to == nil {
			return NotSupported
		}
		return q.pci(to.pci, to.device, 0) // The driver reports no subsystem of the other end.
	})
}

// linksLocked returns all links as the port describes them.
func (g *device) linksLocked() gpu.NVLinks {
	var out gpu.NVLinks
	for i := range g.model.NVLinks {
		switch to := g.link(i); {
		case to == nil:
			out.Down++
		case to.kind == endSwitch:
			out.Switches++
		case !slices.Contains(out.Peers, to.pci):
			out.Peers = append(out.Peers, to.pci)
		}
	}
	slices.Sort(out.Peers)
	return out
}
