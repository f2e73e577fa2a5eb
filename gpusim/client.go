package gpusim

import (
	"context"
	"maps"
	"time"
)

// Client is the use of the library by one process: how often the process initialised it and which GPUs it opened.
type Client struct {
	node  *Node
	pid   int
	admin bool

	inits  int          // guarded by the node's mutex
	opened map[int]bool // guarded by the node's mutex: GPUs by index
}

// NVML returns a client for a process. Privileged clients may change the node.
func (n *Node) NVML(pid int, privileged bool) *Client {
	c := &Client{node: n, pid: pid, admin: privileged, opened: map[int]bool{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clients[c] = struct{}{}
	return c
}

// Close is the end of the process. It frees what the process opened.
func (c *Client) Close() {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.clients, c)
	maps.DeleteFunc(n.useBuffers, func(_ uint64, b *useBuffer) bool { return b.client == c })
	for id, s := range n.events {
		if s.client == c {
			s.closeLocked()
			delete(n.events, id)
		}
	}
}

// target is the object of a handle.
type target struct {
	g  *device
	gi *instance
	ci *compute // of a MIG device or a compute instance
}

// resolveLocked finds the object of a handle of one of the kinds. Handles of removed objects are invalid.
func (n *Node) resolveLocked(h Handle, kinds ...kind) (target, Ret) {
	ok := false
	for _, k := range kinds {
		ok = ok || h.kind() == k
	}
	if !ok || h.index() >= len(n.devices) {
		return target{}, InvalidArgument
	}
	t := target{g: n.devices[h.index()]}
	if h.kind() == kindGPU {
		if h.generation() != n.load {
			return target{}, InvalidArgument
		}
	} else {
		t.gi = t.g.instances[h.gi()]
		if t.gi == nil {
			return target{}, InvalidArgument
		}
		if h.kind() == kindGI {
			if t.gi.serial != h.generation() {
				return target{}, InvalidArgument
			}
		} else {
			t.ci = t.gi.compute[h.ci()]
			if t.ci == nil || t.ci.serial != h.generation() {
				return target{}, InvalidArgument
			}
		}
	}
	if t.g.lost {
		return target{}, GPUIsLost
	}
	return t, Success
}

// at makes a call on the object of a handle.
func (c *Client) at(ctx context.Context, name string, h Handle, body func(target) Ret, kinds ...kind) Ret {
	var g *device
	c.node.mu.Lock()
	if i := h.index(); h != 0 && i < len(c.node.devices) {
		g = c.node.devices[i]
	}
	c.node.mu.Unlock()
	return c.call(ctx, name, g, func() Ret {
		t, ret := c.node.resolveLocked(h, kinds...)
		if ret != Success {
			return ret
		}
		return body(t)
	})
}

// call makes a call: it counts the call, applies faults, waits for the GPU's callLock and for the latency, and runs body
// with the node locked. A call whose ctx ends returns Timeout. A change that was begun then has its effect later, as in a kernel, which
// finishes a change whose caller has ended.
func (c *Client) call(ctx context.Context, name string, g *device, body func() Ret) (ret Ret) {
	n := c.node
	n.mu.Lock()
	n.calls[name]++
	fault := n.matchFaultLocked(name, g)
	ready := n.cfg.State == DriverReady && (c.inits > 0 || name == "Init")
	p := pendingCall{n: n, g: g, fault: fault, wait: n.latencyLocked(name), cleared: n.cleared, body: body}
	n.mu.Unlock()
	defer func() {
		if ret != Success {
			n.mu.Lock()
			n.failures[name]++
			n.mu.Unlock()
		}
	}()
	if !ready && name != "Init" {
		return Uninitialized
	}
	release, ok := g.enter(ctx, IsWrite(name), fault != nil && fault.ReadsAnswer)
	if !ok {
		return Timeout
	}
	if !IsWrite(name) {
		defer release()
		return p.run(ctx)
	}
	done := make(chan Ret, 1)
	go func() { // It ends after the latency and when the fault is cleared, or with the node.
		defer release()
		done <- p.run(n.open)
	}()
	select {
	case ret = <-done:
		return ret
	case <-ctx.Done():
		return Timeout
	}
}

// enter waits until a call may begin: one call at a time is at a GPU. readsAnswer is of a change that does not keep reads from the GPU:
// only other changes wait for it. ok is false if ctx ends before. g is nil for a call on the whole node.
func (g *device) enter(ctx context.Context, write, readsAnswer bool) (release func(), ok bool) {
	var held []chan struct{}
	release = func() {
		for _, l := range held {
			<-l
		}
	}
	if g == nil {
		return release, true
	}
	var locks []chan struct{}
	if write {
		locks = append(locks, g.writeLock)
	}
	if !write || !readsAnswer {
		locks = append(locks, g.callLock)
	}
	for _, l := range locks {
		select {
		case l <- struct{}{}:
			held = append(held, l)
		case <-ctx.Done():
			release()
			return nil, false
		}
	}
	return release, true
}

// pendingCall is a call that has begun.
type pendingCall struct {
	n       *Node
	g       *device
	fault   *Fault
	wait    time.Duration
	cleared <-chan struct{}
	body    func() Ret
}

// run applies the fault, waits for the latency and has the effect.
func (p *pendingCall) run(ctx context.Context) Ret {
	n := p.n
	if p.fault != nil && !p.fault.After {
		if ret := n.applyFault(ctx, p.fault, p.g, p.cleared); ret != Success {
			return ret
		}
	}
	if err := sleep(ctx, n.clock, p.wait); err != nil {
		return Timeout
	}
	n.mu.Lock()
	before := n.changes
	ret := p.body()
	dirty := n.changes != before
	n.mu.Unlock()
	if dirty {
		n.changed()
	}
	if p.fault != nil && p.fault.After {
		if faultRet := n.applyFault(ctx, p.fault, p.g, p.cleared); faultRet != Success {
			return faultRet
		}
	}
	return ret
}

// applyFault applies a fault to a call. It returns Success if the call continues.
func (n *Node) applyFault(ctx context.Context, f *Fault, g *device, cleared <-chan struct{}) Ret {
	switch f.Do {
	case FaultFail:
		return f.Code
	case FaultHang:
		select {
		case <-cleared:
			return Success
		case <-ctx.Done():
			return Timeout
		}
	default:
		if g == nil {
			return UnknownError
		}
		n.Lose(g.index)
		return GPUIsLost
	}
}

// sleep waits on the node's clock.
func sleep(ctx context.Context, clock Clock, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	done := make(chan struct{})
	t := clock.AfterFunc(d, func() { close(done) })
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
