package gpusim

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// MemoryAccounting says how the kernel module accounts GPU memory by cgroup (registry key RmMemacctMode).
type MemoryAccounting string

// The modes.
const (
	MemoryAccountingOff  MemoryAccounting = ""     // also of every driver before R615
	MemoryAccountingMisc MemoryAccounting = "misc" // inside the driver: the limit of a cgroup does not hold for those below it
	// MemoryAccountingDmem: the kernel's controller. The limit of a cgroup holds for those below it. A cgroup without the
	// controller's files has no limit.
	MemoryAccountingDmem MemoryAccounting = "dmem"
)

// MemoryLimitConfig is the behaviour of the memory limits. The last two keys are questions that the documentation leaves
// open: the node has both answers.
type MemoryLimitConfig struct {
	Accounting MemoryAccounting
	// UnsetFails: reading the limit of a cgroup without one fails, with NOT_SUPPORTED (misc) or NOT_FOUND (dmem), instead of
	// returning "no limit".
	UnsetFails bool
	// ContextFree: the memory of a context itself does not count, only what it allocates.
	ContextFree bool
}

// Cgroups is what the kernel module knows of the host's cgroups. Paths are full paths of directories.
type Cgroups interface {
	// Of returns the cgroup of a process.
	Of(pid int) (string, error)
	// ID identifies a cgroup: one that is removed and created again has another. 0 when there is none.
	ID(path string) uint64
	// Dmem reports whether the cgroup has the files of the dmem controller.
	Dmem(path string) bool
	// Root is the directory of the hierarchy: the ancestors of a cgroup end there.
	Root() string
}

// noLimit is the vendor's value for "no limit".
const noLimit = ^uint64(0)

// memoryLimit is the limit of one cgroup on one GPU.
type memoryLimit struct {
	id            uint64 // of the cgroup
	minimum, hard uint64 // the soft limit, dmem.min, and the hard one, dmem.max
}

// charge is memory that one context allocated while its process was in a cgroup. A process that moves leaves its charges.
type charge struct {
	cgroup string
	bytes  uint64
}

// reapLimitsLocked forgets the limits of removed cgroups. What their soft limits reserved above stays reserved.
func (g *device) reapLimitsLocked() {
	for cg, l := range g.limits {
		if g.node.cfg.Cgroups.ID(cg) == l.id {
			continue
		}
		delete(g.limits, cg)
		if g.node.cfg.MemoryLimits.Accounting == MemoryAccountingDmem {
			g.leaked += l.minimum
		}
	}
}

// limitable refuses calls on limits as the driver does.
func (g *device) limitable(cg string) Ret {
	switch n := g.node; {
	case n.cfg.MemoryLimits.Accounting == MemoryAccountingOff || n.cfg.Cgroups == nil || g.migCurrent:
		return NotSupported
	case cg == "":
		return InvalidArgument
	case n.cfg.Cgroups.ID(cg) == 0:
		return OperatingSystem
	case n.cfg.MemoryLimits.Accounting == MemoryAccountingDmem && !n.cfg.Cgroups.Dmem(cg):
		return NotFound
	}
	return Success
}

func (g *device) setLimitLocked(cg string, minimum, hard uint64) Ret {
	if ret := g.limitable(cg); ret != Success {
		return ret
	}
	if total := g.model.TotalMiB * MiB; minimum > hard || minimum > total || hard != noLimit && hard > total {
		return InvalidArgument
	}
	g.reapLimitsLocked()
	if minimum == 0 && hard == noLimit {
		delete(g.limits, cg)
		return Success
	}
	if g.limits == nil {
		g.limits = map[string]memoryLimit{}
	}
	g.limits[cg] = memoryLimit{id: g.node.cfg.Cgroups.ID(cg), minimum: minimum, hard: hard}
	return Success
}

func (g *device) limitLocked(cg string) (minimum, hard, used uint64, ret Ret) {
	if ret := g.limitable(cg); ret != Success {
		return 0, 0, 0, ret
	}
	g.reapLimitsLocked()
	l, set := g.limits[cg]
	if !set {
		l.hard = noLimit
	}
	if !set && g.node.cfg.MemoryLimits.UnsetFails {
		if g.node.cfg.MemoryLimits.Accounting == MemoryAccountingMisc {
			return 0, 0, 0, NotSupported
		}
		return 0, 0, 0, NotFound
	}
	return l.minimum, l.hard, g.chargedLocked(cg), Success
}

// chargedLocked adds up what the processes of a cgroup have allocated. With dmem those of the cgroups below it count too.
func (g *device) chargedLocked(cg string) uint64 {
	var sum uint64
	for c := range g.contexts {
		for _, k := range c.charges {
			if k.cgroup == cg || g.node.cfg.MemoryLimits.Accounting == MemoryAccountingDmem && strings.HasPrefix(k.cgroup, cg+"/") {
				sum += k.bytes
			}
		}
	}
	return sum
}

// chargeLocked charges an allocation of a process to its cgroup now. It is refused when that, or with dmem one above it, is
// over its limit afterwards.
func (c *Context) chargeLocked(bytes uint64) error {
	cfg := &c.node.cfg
	if cfg.MemoryLimits.Accounting == MemoryAccountingOff || cfg.Cgroups == nil || c.ci != nil {
		return nil
	}
	cg, err := cfg.Cgroups.Of(c.pid)
	if err != nil {
		return nil //nolint:nilerr // The process has just exited, or is in no cgroup of this hierarchy: nothing is limited.
	}
	c.dev.reapLimitsLocked()
	for at := cg; ; at = path.Dir(at) {
		if l, ok := c.dev.limits[at]; ok && l.hard != noLimit && c.dev.chargedLocked(at)+bytes > l.hard {
			return errOutOfMemory
		}
		if cfg.MemoryLimits.Accounting == MemoryAccountingMisc || len(at) <= len(cfg.Cgroups.Root()) {
			break
		}
	}
	if n := len(c.charges); n > 0 && c.charges[n-1].cgroup == cg {
		c.charges[n-1].bytes += bytes
	} else {
		c.charges = append(c.charges, charge{cg, bytes})
	}
	return nil
}

// unchargeLocked takes freed memory from the newest charges.
func (c *Context) unchargeLocked(bytes uint64) {
	for n := len(c.charges) - 1; n >= 0 && bytes > 0; n-- {
		k := &c.charges[n]
		taken := min(k.bytes, bytes)
		k.bytes, bytes = k.bytes-taken, bytes-taken
		if k.bytes == 0 {
			c.charges = c.charges[:n]
		}
	}
}

// visibleLocked is the memory of the GPU as a process sees it: R615 shows the limit of the process's own cgroup as the
// total. The limit of a cgroup above it is not shown.
func (g *device) visibleLocked(gi *instance, pid int) gpu.Memory {
	m := g.memoryLocked(gi)
	if gi != nil || g.limits == nil {
		return m
	}
	cg, err := g.node.cfg.Cgroups.Of(pid)
	if err != nil {
		return m
	}
	g.reapLimitsLocked()
	if l, ok := g.limits[cg]; ok && l.hard < m.Total {
		m = gpu.Memory{Total: l.hard, Used: g.chargedLocked(cg), Free: min(m.Free, l.hard-min(l.hard, g.chargedLocked(cg)))}
	}
	return m
}

// MemoryLimitView is the limit of one cgroup on one GPU, with what is charged to it.
type MemoryLimitView struct {
	Cgroup  string `json:"cgroup"`
	Minimum uint64 `json:"minimum"`
	Hard    uint64 `json:"hard"`
	Used    uint64 `json:"used"`
}

func (g *device) limitViewsLocked() []MemoryLimitView {
	if g.limits == nil {
		return nil
	}
	g.reapLimitsLocked()
	var out []MemoryLimitView
	for cg, l := range g.limits {
		out = append(out, MemoryLimitView{Cgroup: cg, Minimum: l.minimum, Hard: l.hard, Used: g.chargedLocked(cg)})
	}
	slices.SortFunc(out, func(a, b MemoryLimitView) int { return strings.Compare(a.Cgroup, b.Cgroup) })
	return out
}

// setMemoryLimits and getMemoryLimits answer the calls of R615.
func (q *call) setMemoryLimits(t target) Ret { return t.g.setLimitLocked(q.text, q.args[1], q.args[2]) }

func (q *call) getMemoryLimits(t target) Ret {
	minimum, hard, used, ret := t.g.limitLocked(q.text)
	if ret != Success {
		return ret
	}
	return q.out.put(minimum, hard, used)
}

// checkMemoryLimits checks the configuration.
func (n *Node) checkMemoryLimits() error {
	switch n.cfg.MemoryLimits.Accounting {
	case MemoryAccountingOff:
	case MemoryAccountingMisc, MemoryAccountingDmem:
		if n.cfg.Cgroups == nil {
			return errors.New("memory is accounted by cgroup, but the node knows no cgroups")
		}
	default:
		return fmt.Errorf(
			"the memory accounting must be %s or %s, not %q", MemoryAccountingMisc, MemoryAccountingDmem, n.cfg.MemoryLimits.Accounting,
		)
	}
	return nil
}
