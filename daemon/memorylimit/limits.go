package memorylimit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// Limits keeps the driver's limits of GPU memory by cgroup. Set the fields before the first use.
type Limits struct {
	*report.Reporter
	State     *state.State
	Driver    driver
	Observer  interface{ Last() *observe.Node }
	Table     *lease.Table
	Hierarchy *cgroup.Hierarchy // nil: this host has no cgroups that gpushare can use
	Overuse   func(l *lease.Lease) quota.OverusePolicy
	CanFreeze bool // processes of leases can be frozen on this host

	mu        locks.Mutex[locks.Leaf] // guards what follows
	known     map[target]result       // what was last read back, or why not
	abilities map[gpu.UUID]ability
	checked   time.Time // the last time that all limits were read
	tried     time.Time // the last time that a driver that could not limit cgroups was tried again
	swept     uint64    // 1 + the generation of the spec for which limits of former grants were looked for
}

// driver is the part of the port that limits memory.
type driver interface {
	MemoryLimit(ctx context.Context, id gpu.UUID, cgroup string) (gpu.MemoryLimit, error)
	SetMemoryLimit(ctx context.Context, id gpu.UUID, cgroup string, hard *uint64) error
}

// target is a cgroup, relative to the hierarchy, on one GPU.
type target struct {
	gpu    gpu.UUID
	cgroup string
}

// result is what was last read back of a target.
type result struct {
	hard   uint64 // desired, in bytes
	lease  string // whose cgroup it is; empty for a slice
	tenant string
	reason string // why the limit is not in force; empty if it was read back
	dmem   bool   // the kernel's controller has the limit, so it also holds for the cgroups below
}

// ability is what the driver can do on one GPU, as far as it was tried.
type ability struct {
	known    bool
	reason   string // why it limits no cgroup; empty if it does
	together bool   // a limit also holds for the cgroups below
}

// item is a limit to verify: nil removes it.
type item struct {
	cgroup string
	hard   *uint64
	tenant string
	lease  string
	what   string // "the slice of vision/dev"
}

// ensure makes the limit of a cgroup the desired one. It writes nothing if it is so already, and returns what it was before.
func (m *Limits) ensure(ctx context.Context, id gpu.UUID, it *item) (was *uint64, wrote bool, err error) {
	var enabled error
	if it.hard != nil {
		_, enabled = m.Hierarchy.EnableController(it.cgroup, cgroup.DmemController)
	}
	dir := m.Hierarchy.Dir(it.cgroup)
	is, err := m.Driver.MemoryLimit(ctx, id, dir)
	unset := gpu.IsAny(err, gpu.ErrNotFound, gpu.ErrNotSupported) // also the answer for a cgroup that has no limit
	switch {
	case err == nil && same(is.Hard, it.hard), unset && it.hard == nil:
		return is.Hard, false, nil
	case err != nil && !unset:
		return nil, false, err
	}
	was = is.Hard
	m.Counters.MemoryLimitWrites.Add(1)
	if err := m.Driver.SetMemoryLimit(ctx, id, dir, it.hard); err != nil {
		if gpu.IsAny(err, gpu.ErrNotFound) && enabled != nil {
			err = fmt.Errorf("%w: %w", err, enabled)
		}
		return was, false, err
	}
	is, err = m.Driver.MemoryLimit(ctx, id, dir)
	switch {
	case it.hard == nil && (err == nil && is.Hard == nil || gpu.IsAny(err, gpu.ErrNotFound, gpu.ErrNotSupported)):
		return was, true, nil
	case err != nil:
		return was, true, fmt.Errorf("cannot read it back: %w", err)
	case !same(is.Hard, it.hard):
		return was, true, fmt.Errorf("it was set to %s and reads back as %s", limitText(it.hard), limitText(is.Hard))
	}
	return was, true, nil
}

func same(a, b *uint64) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

func limitText(hard *uint64) string {
	if hard == nil {
		return "no limit"
	}
	return api.Bytes(*hard).Short()
}

// reasonOf returns why the driver limits no cgroup, for people.
func reasonOf(err error) string {
	switch {
	case gpu.IsAny(err, gpu.ErrMissing):
		return tooOld
	case gpu.IsAny(err, gpu.ErrNotSupported):
		return "the driver does not account GPU memory by cgroup"
	case gpu.IsAny(err, gpu.ErrNotFound):
		return "the cgroup lacks the dmem controller of the kernel (Linux 6.14)"
	}
	return err.Error()
}

const tooOld = "the driver is older than R615"

// unable reports whether err means that the driver limits no cgroup on this GPU, as opposed to a failed call.
func unable(err error) bool {
	return gpu.IsAny(err, gpu.ErrMissing, gpu.ErrNotSupported, gpu.ErrNotFound)
}

// lacks reports whether the driver lacks the functions.
func lacks(node *observe.Node) bool {
	return slices.Contains(node.Driver.Missing, "nvmlDeviceSetMemoryLimits_v1") ||
		slices.Contains(node.Driver.Missing, "nvmlDeviceGetMemoryLimits_v1")
}

// record keeps the result of one item.
func (m *Limits) record(id gpu.UUID, it *item, err error) {
	dmem := err == nil && it.hard != nil && m.Hierarchy.HasDmemLimit(it.cgroup)
	m.mu.Lock()
	defer m.mu.Unlock()
	if it.lease == "" && it.hard != nil { // The slices of gpushare show what the driver can do.
		switch {
		case err == nil:
			m.setAbilityLocked(id, ability{known: true, together: dmem})
		case unable(err):
			m.setAbilityLocked(id, ability{known: true, reason: reasonOf(err)})
		}
	}
	at := target{id, it.cgroup}
	if it.hard == nil {
		if err == nil {
			delete(m.known, at)
		}
		return
	}
	r := result{hard: *it.hard, tenant: it.tenant, lease: it.lease, dmem: dmem}
	if err != nil {
		r.reason = reasonOf(err)
	}
	if m.known == nil {
		m.known = map[target]result{}
	}
	m.known[at] = r
}

func (m *Limits) setAbilityLocked(id gpu.UUID, a ability) {
	if m.abilities == nil {
		m.abilities = map[gpu.UUID]ability{}
	}
	m.abilities[id] = a
}

func (m *Limits) get(at target) (result, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.known[at]
	return r, ok
}

// abilityOf returns what the driver can do on a GPU.
func (m *Limits) abilityOf(id gpu.UUID) ability {
	node := m.Observer.Last()
	switch {
	case m.Hierarchy == nil:
		return ability{known: true, reason: "this host has no cgroups that gpushare can use"}
	case node != nil && lacks(node):
		return ability{known: true, reason: tooOld}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.abilities[id]
}
