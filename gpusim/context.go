package gpusim

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/engine"
)

// ContextSpec is a process's request for a CUDA context.
type ContextSpec struct {
	PID int
	// Device is a GPU UUID, a MIG UUID or an ordinal.
	Device string
	// MPS is the pipe directory of the MPS server; empty without MPS.
	MPS    string
	Server int     // the MPS server's pid, 0 when not known
	Limit  uint64  // device memory limit of this client in bytes; 0: no limit
	Share  float64 // active thread percentage, above 0 to 100; 0: all
}

// Context is one CUDA context. It ends with Close, with its process, or with its GPU.
type Context struct {
	node  *Node
	dev   *device
	ci    *compute // nil without MIG
	pid   int
	spec  ContextSpec
	run   *engine.Context
	ended chan struct{} // closed by endLocked

	memory  uint64   // guarded by the node's mutex
	managed uint64   // guarded by the node's mutex: in no process list, and not limited by cgroup
	charges []charge // guarded by the node's mutex
	closed  bool
}

// Devices are the device nodes that a context opens: the minor of /dev/nvidia<minor>, and the capability minors of its
// GPU instance and compute instance, -1 without MIG.
type Devices struct{ Minor, GI, CI int }

// OpenContext creates a context. The error is a *CUDAError.
func (n *Node) OpenContext(spec ContextSpec) (*Context, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	g, ci, err := n.targetLocked(spec.Device)
	if err != nil {
		return nil, err
	}
	if g.unusableLocked() {
		return nil, errUnavailable
	}
	if g.mode == gpu.ComputeProhibited {
		return nil, errUnavailable
	}
	if g.mode == gpu.ComputeExclusiveProcess {
		for c := range g.contexts {
			// Only contexts of the same process, or of clients of the same MPS server, may exist.
			sameServer := spec.MPS != "" && c.spec.MPS == spec.MPS
			if c.ci == ci && c.pid != spec.PID && !sameServer {
				return nil, errUnavailable
			}
		}
	}
	var gi *instance
	eng, group := g.engine, ""
	if ci != nil {
		gi, eng = ci.gi, ci.gi.engine
	}
	if spec.MPS != "" {
		group = "mps " + spec.MPS
	}
	need := n.cfg.ContextMemory
	if spec.MPS != "" && spec.Server > 0 && !g.hasServerLocked(gi, spec.Server) {
		need += n.cfg.ServerMemory
	}
	if g.memoryLocked(gi).Free < need {
		return nil, errOutOfMemory
	}
	c := &Context{node: n, dev: g, ci: ci, pid: spec.PID, spec: spec, memory: n.cfg.ContextMemory, ended: make(chan struct{})}
	if !n.cfg.MemoryLimits.ContextFree {
		if err := c.chargeLocked(n.cfg.ContextMemory); err != nil {
			return nil, err
		}
	}
	c.run = eng.AddContext(spec.PID, group, engine.Options{Share: spec.Share / 100})
	g.contexts[c] = struct{}{}
	return c, nil
}

// targetLocked finds the device of a context. A GPU in MIG mode has no contexts itself; its ordinal selects its first MIG
// device, as in CUDA.
func (n *Node) targetLocked(id string) (*device, *compute, error) {
	if n.cfg.State != DriverReady || len(n.devices) == 0 {
		return nil, nil, errNoDevice
	}
	if strings.HasPrefix(id, "MIG-") {
		for _, g := range n.devices {
			for _, ci := range g.migDevicesLocked() {
				if string(ci.uuid) == id {
					return g, ci, nil
				}
			}
		}
		return nil, nil, errNoDevice
	}
	if i, err := strconv.Atoi(id); err == nil {
		if i < 0 || i >= len(n.devices) {
			return nil, nil, errBadDevice
		}
		g := n.devices[i]
		if !g.migCurrent {
			return g, nil, nil
		}
		if devices := g.migDevicesLocked(); len(devices) > 0 {
			return g, devices[0], nil
		}
		return nil, nil, errNoDevice
	}
	for _, g := range n.devices {
		if string(g.uuid) == id && !g.migCurrent {
			return g, nil, nil
		}
	}
	return nil, nil, errNoDevice
}

func (c *Context) gi() *instance {
	if c.ci == nil {
		return nil
	}
	return c.ci.gi
}

// Devices returns the device nodes that the process must be able to open.
func (c *Context) Devices() Devices {
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	if c.ci == nil {
		return Devices{c.dev.minor, -1, -1}
	}
	return Devices{c.dev.minor, CapGI(c.dev.minor, c.ci.gi.id), CapCI(c.dev.minor, c.ci.gi.id, c.ci.id)}
}

// Alloc allocates device memory.
func (c *Context) Alloc(bytes uint64) error {
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	switch {
	case c.closed:
		return errContextDestroyed
	case c.spec.Limit > 0 && c.memory+bytes > c.spec.Limit:
		return errOutOfMemory
	case c.dev.memoryLocked(c.gi()).Free < bytes:
		return errOutOfMemory
	}
	if err := c.chargeLocked(bytes); err != nil {
		return err
	}
	c.memory += bytes
	return nil
}

// AllocManaged allocates managed memory and moves it to the GPU. The driver attributes it to no process, and no limit of a
// cgroup or of MPS counts it.
func (c *Context) AllocManaged(bytes uint64) error {
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	switch {
	case c.closed:
		return errContextDestroyed
	case c.dev.memoryLocked(c.gi()).Free < bytes:
		return errOutOfMemory
	}
	c.managed += bytes
	return nil
}

// Free frees device memory.
func (c *Context) Free(bytes uint64) error {
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	if c.closed {
		return errContextDestroyed
	}
	if bytes > c.memory-c.node.cfg.ContextMemory {
		return errBadValue
	}
	c.memory -= bytes
	c.unchargeLocked(bytes)
	return nil
}

// SetQueue sets how many kernels may wait.
func (c *Context) SetQueue(n int) { c.run.SetDepth(n) }

// Launch queues kernels and returns when all of them are in the queue.
func (c *Context) Launch(ctx context.Context, each time.Duration, count int) error {
	return c.result(c.run.Launch(ctx, each, count))
}

// Sync returns when all queued kernels have run.
func (c *Context) Sync(ctx context.Context) error { return c.result(c.run.Sync(ctx)) }

func (c *Context) result(err error) error {
	if errors.Is(err, engine.ErrClosed) {
		return errContextDestroyed
	}
	return err
}

// Close ends the context: it frees its memory and drops its queued kernels.
func (c *Context) Close() {
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	c.endLocked()
}

func (c *Context) endLocked() {
	if c.closed {
		return
	}
	c.closed = true
	c.run.Close()
	delete(c.dev.contexts, c)
	close(c.ended)
}

// server is an MPS server in a process list.
type server struct {
	pid    int
	gi     *instance
	ci     *compute
	memory uint64
}

// mpsServersLocked returns the servers that have clients on the GPU, or on one MIG device, and no context themselves.
func (g *device) mpsServersLocked(only *compute) []server {
	type key struct {
		pid int
		ci  *compute
	}
	seen := map[key]bool{}
	for c := range g.contexts {
		if c.spec.MPS == "" {
			seen[key{c.pid, c.ci}] = true
		}
	}
	var out []server
	for c := range g.contexts {
		k := key{c.spec.Server, c.ci}
		if c.spec.MPS != "" && k.pid > 0 && !seen[k] && (only == nil || c.ci == only) {
			seen[k] = true
			out = append(out, server{k.pid, c.gi(), c.ci, g.node.cfg.ServerMemory})
		}
	}
	return out
}

func (g *device) hasServerLocked(gi *instance, pid int) bool {
	for _, s := range g.mpsServersLocked(nil) {
		if s.pid == pid && s.gi == gi {
			return true
		}
	}
	return false
}

// processesLocked returns the processes of one list, on the GPU or on one MIG device, by pid. A process has one entry for
// each MIG device that it uses.
func (g *device) processesLocked(k gpu.ProcessKind, only *compute) []gpu.Process {
	type key struct {
		pid int
		ci  *compute
	}
	sums := map[key]uint64{}
	for c := range g.contexts {
		if pid, ok := g.node.cfg.MPSLists.entry(c, k); ok && (only == nil || c.ci == only) {
			sums[key{pid, c.ci}] += c.memory
		}
	}
	if k == gpu.ComputeProcess {
		for _, s := range g.mpsServersLocked(only) {
			sums[key{s.pid, s.ci}] += s.memory
		}
	}
	out := make([]gpu.Process, 0, len(sums))
	for k2, memory := range sums {
		p := gpu.Process{PID: k2.pid, Kind: k}
		if !g.node.cfg.HideProcessMemory {
			m := memory
			p.Memory = &m
		}
		if k2.ci != nil {
			gi, ci := k2.ci.gi.id, k2.ci.id
			p.GI, p.CI = &gi, &ci
		}
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if a.PID != b.PID {
			return a.PID < b.PID
		}
		return fmt.Sprint(opt(a.GI), opt(a.CI)) < fmt.Sprint(opt(b.GI), opt(b.CI))
	})
	return out
}

// entry returns the pid under which a list of processes has a context; ok is false if it does not.
func (l MPSLists) entry(c *Context, list gpu.ProcessKind) (pid int, ok bool) {
	switch {
	case c.spec.MPS == "":
		return c.pid, list == gpu.ComputeProcess
	case l == MPSListServer:
		return c.spec.Server, list == gpu.ComputeProcess && c.spec.Server > 0
	}
	return c.pid, list == gpu.MPSProcess || l == MPSListBoth && list == gpu.ComputeProcess
}

// opt returns the driver's value of an optional number.
func opt(p *uint32) uint32 {
	if p == nil {
		return none
	}
	return *p
}
