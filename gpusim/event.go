package gpusim

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// The event types of the vendor's library.
const (
	eventSingleECC   = 0x1
	eventDoubleECC   = 0x2
	eventXID         = 0x8
	eventMIGConfig   = 0x100
	eventUnavailable = 0x4000
	eventRecovery    = 0x8000
)

// Event is what a waiting client receives.
type Event struct {
	Time   time.Time
	Device Handle
	GPU    gpu.UUID
	Type   uint64
	Data   uint64 // the XID
	GI, CI uint32 // none for the whole GPU
}

// eventSet is what a client registered for. The node's mutex guards all fields except the channels.
type eventSet struct {
	client *Client
	masks  map[int]uint64 // by GPU index
	queue  chan Event     // when it is full the oldest event is dropped, as the driver does
	ended  chan struct{}
	closed bool
}

func (s *eventSet) closeLocked() {
	if !s.closed {
		s.closed = true
		close(s.ended)
	}
}

// emitLocked sends an event to every set that registered for it.
func (n *Node) emitLocked(g *device, kind, data uint64, gi, ci uint32) {
	e := Event{Time: n.clock.Now(), Device: g.handleLocked(), GPU: g.uuid, Type: kind, Data: data, GI: gi, CI: ci}
	for _, s := range n.events {
		if s.masks[g.index]&kind == 0 {
			continue
		}
		for sent := false; !sent; {
			select {
			case s.queue <- e:
				sent = true
			default:
				select {
				case <-s.queue:
				default:
				}
			}
		}
	}
}

// newEventSetLocked creates an event set of a client.
func (c *Client) newEventSetLocked() Handle {
	n := c.node
	n.eventN++
	n.events[n.eventN] = &eventSet{client: c, masks: map[int]uint64{}, queue: make(chan Event, 256), ended: make(chan struct{})}
	return makeHandle(kindEvents, n.eventN, 0, 0, 0)
}

func (c *Client) eventSetLocked(h Handle) *eventSet {
	if h.kind() != kindEvents {
		return nil
	}
	s := c.node.events[h.generation()]
	if s == nil || s.client != c {
		return nil
	}
	return s
}

// wait waits for one event.
func (c *Client) wait(ctx context.Context, h Handle, timeout time.Duration) (Event, Ret) {
	c.node.mu.Lock()
	s := c.eventSetLocked(h)
	c.node.mu.Unlock()
	if s == nil {
		return Event{}, InvalidArgument
	}
	select {
	case e := <-s.queue:
		return e, Success
	default:
	}
	late := make(chan struct{})
	t := c.node.clock.AfterFunc(timeout, func() { close(late) })
	defer t.Stop()
	select {
	case e := <-s.queue:
		return e, Success
	case <-s.ended:
		return Event{}, Uninitialized
	case <-late:
		return Event{}, Timeout
	case <-ctx.Done():
		return Event{}, Timeout
	}
}

// The XIDs that need a reset, and those without consequence. Every other XID ends the contexts of the process that it
// names.
var (
	xidNeedsReset    = []int{46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
	xidInformational = []int{37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
)

// XID reports an error on a GPU: in the kernel log, as an event, and with its consequence. pid is the process that caused
// it, 0 when unknown. An XID that an application causes ends the contexts of the process, and under MPS those of all
// clients of its server.
func (n *Node) XID(id string, xid, pid int, name string) error {
	n.mu.Lock()
	g := n.findLocked(id)
	if g == nil {
		n.mu.Unlock()
		return fmt.Errorf("cannot report XID on GPU %s: not found", id)
	}
	gi, ci := uint32(none), uint32(none)
	mps := ""
	for c := range g.contexts {
		if c.pid == pid {
			if c.ci != nil {
				gi, ci = c.ci.gi.id, c.ci.id
			}
			mps = c.spec.MPS
		}
	}
	all := contains(xidNeedsReset, xid) || xid == 79
	if all || !contains(xidInformational, xid) {
		for c := range g.contexts {
			if all || c.pid == pid || mps != "" && c.spec.MPS == mps {
				c.endLocked()
			}
		}
	}
	switch {
	case xid == 79:
		g.lost = true
		g.recoveryLocked(recoveryReboot)
		n.emitLocked(g, eventUnavailable, 0, none, none)
	case all:
		g.recoveryLocked(recoveryReset)
	}
	n.emitLocked(g, eventXID, uint64(xid), gi, ci)
	if g.recovery != recoveryNone {
		n.emitLocked(g, eventRecovery, uint64(g.recovery), none, none)
	}
	pci := g.cfg.PCI
	n.mu.Unlock()
	text := fmt.Sprintf("NVRM: Xid (PCI:%s): %d", pciShort(pci), xid)
	if pid > 0 {
		text += fmt.Sprintf(", pid=%d, name=%s", pid, name)
	}
	if xid == 79 {
		text += ", GPU has fallen off the bus."
	}
	n.kernel(4, text)
	return nil
}

// Lose makes a GPU fall off the bus.
func (n *Node) Lose(index int) { _ = n.XID(fmt.Sprint(index), 79, 0, "") }

// pciShort is the address in the kernel log of the driver: without the function.
func pciShort(pci string) string {
	for i := len(pci) - 1; i >= 0; i-- {
		if pci[i] == '.' {
			return pci[:i]
		}
	}
	return pci
}

func contains(list []int, x int) bool {
	for _, v := range list {
		if v == x {
			return true
		}
	}
	return false
}
