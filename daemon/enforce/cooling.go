package enforce

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// conditionTemperature is the condition of a hot GPU on which the spec pauses leases: which are paused, and which are not.
const conditionTemperature = "temperature"

// Cooling pauses leases while a GPU is hot (temperature.do: pause-low). Package health decides when, and which.
type Cooling struct {
	// Heat returns how hot a GPU is now, and whether the spec pauses leases on it; nil: none is paused.
	Heat func(gpu.UUID) (heat health.Heat, pauses bool)
	Wake loop.Wake // a lease started or ended, or a GPU that is or was hot was read

	rules atomic.Pointer[map[string]api.Rule] // by lease: what the last pass found

	// Only the loop uses these.
	paused   map[string]*pausedLease // by lease
	reported map[string]api.Condition
}

// pausedLease is a lease that is paused, or could not be.
type pausedLease struct {
	readAt time.Time // the reading for which it was frozen the last time
	err    error     // why it could not be
	begun  bool      // its users were informed that it is paused
}

// hotGPU is a GPU on which leases are to be paused now.
type hotGPU struct {
	id   gpu.UUID
	name string
	health.Heat
	health.Pause
}

func (g *hotGPU) String() string {
	return fmt.Sprintf("%s has %d °C, and is hot from %d °C (temperature.do: pause-low)", g.name, g.Temperature, g.Limit)
}

// coolingLoop pauses and continues leases until ctx ends, and then continues all.
func (en *Enforcer) coolingLoop(ctx context.Context) {
	if en.Cooling.Heat == nil {
		return
	}
	for {
		d := time.Minute
		if en.cool(ctx) {
			d = time.Second // Readings become old, and the spec may end it.
		}
		if _, ok := en.Cooling.Wake.Sleep(ctx, d); !ok {
			en.thawPaused(context.WithoutCancel(ctx))
			return
		}
	}
}

// cool is one pass. It reports whether a GPU is hot or a lease is paused.
func (en *Enforcer) cool(ctx context.Context) bool {
	hot := en.hotGPUs()
	cannot := en.canFreeze()
	want := map[string]*hotGPU{} // by lease, the GPU that was read last
	for _, g := range hot {
		for _, id := range g.Leases {
			if cannot == nil && (want[id] == nil || g.ReadAt.After(want[id].ReadAt)) {
				want[id] = g
			}
		}
	}
	en.continueOthers(ctx, want)
	for _, id := range slices.Sorted(maps.Keys(want)) {
		en.pause(ctx, id, want[id])
	}
	conditions := map[string]api.Condition{}
	for _, g := range hot {
		conditions[string(g.id)] = api.Condition{
			GPU:     string(g.id),
			Message: g.String() + ": " + en.consequence(g, cannot),
			Hint:    "check its fans and the air around it",
		}
	}
	en.Conditions.Replace(conditionTemperature, conditions)
	en.publishRules(hot, cannot)
	if !maps.Equal(conditions, en.Cooling.reported) {
		en.Cooling.reported = conditions
		en.Invalidate()
	}
	return len(hot) > 0 || len(en.Cooling.paused) > 0
}

// hotGPUs are the hot GPUs with leases on which the spec pauses some, with those that are to be paused.
func (en *Enforcer) hotGPUs() (out []*hotGPU) {
	running := map[gpu.UUID][]health.Running{}
	for _, l := range en.Table.Live() {
		if l.State != lease.Running {
			continue
		}
		r := health.Running{Lease: l.ID, Priority: int(priorityOf(l.Terms.Priority)), Never: neverFrozen(&l), Frozen: en.frozenTenant(&l)}
		for _, id := range l.Place.GPUs {
			running[id] = append(running[id], r)
		}
	}
	node := en.Observer.Last()
	for _, id := range slices.Sorted(maps.Keys(running)) {
		heat, pauses := en.Cooling.Heat(id)
		if !heat.Hot || !pauses {
			continue
		}
		name := "GPU " + string(id)
		if g, ok := node.GPU(id); ok && g.Identity.Index >= 0 {
			name = g.Identity.Name()
		}
		out = append(out, &hotGPU{id, name, heat, health.Pauses(running[id])})
	}
	return out
}

// frozenTenant reports whether a lease is frozen by an administrator.
func (en *Enforcer) frozenTenant(l *lease.Lease) bool {
	return en.Freezer != nil && slices.Contains(en.Freezer.Reasons(l.ID), cgroup.ForAdministrator)
}

// pause freezes a lease until the reading is old, and for each new reading again. A freeze that failed is tried again with the next one.
func (en *Enforcer) pause(ctx context.Context, id string, g *hotGPU) {
	p := en.Cooling.paused[id]
	if p == nil {
		p = &pausedLease{}
		if en.Cooling.paused == nil {
			en.Cooling.paused = map[string]*pausedLease{}
		}
		en.Cooling.paused[id] = p
	}
	// The thaw watchdog may have been missing for a while, or a client of MPS was let go on.
	if p.readAt.Equal(g.ReadAt) && (p.err != nil || slices.Contains(en.Freezer.Reasons(id), cgroup.ForTemperature)) {
		return
	}
	freezing, cancel := context.WithTimeout(ctx, memoryFreezeTimeout)
	defer cancel()
	en.Counters.Freezes.Add(1)
	p.readAt = g.ReadAt
	p.err = en.freeze(freezing, id, cgroup.ForTemperature, g.ReadAt.Add(health.HeatLasts).Sub(en.Now()))
	switch {
	case p.err != nil:
		en.Log.Warn("cannot pause a lease of a hot GPU", "lease", id, "gpu", g.id, "error", p.err)
	case !p.begun:
		p.begun = true
		text := fmt.Sprintf("it is paused: %s. It continues at %d °C", g, g.Limit-health.ClearsBelow)
		en.Table.Notice(id, lease.Notice{Kind: "lease.paused", Text: text})
		en.Audit("gpushared", "temperature", "pauses lease "+id+": "+g.String())
		en.Log.Info("a lease is paused", "lease", id, "gpu", g.id, "temperature", g.Temperature, "limit", g.Limit)
	}
}

// thawPaused thaws all paused leases when the daemon stops. The next one pauses them again, so no user is informed.
func (en *Enforcer) thawPaused(ctx context.Context) {
	for _, id := range slices.Sorted(maps.Keys(en.Cooling.paused)) {
		en.thawOne(ctx, id)
	}
}

// thawOne ends the freeze of a lease, and reports whether it did. A lease whose processes have ended is not frozen.
func (en *Enforcer) thawOne(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, memoryFreezeTimeout)
	defer cancel()
	err := en.thaw(ctx, id, cgroup.ForTemperature)
	if err == nil || errors.Is(err, cgroup.ErrNotFound) {
		return true
	}
	en.Log.Error("cannot continue a lease that was paused", "lease", id, "error", err)
	return false
}

// continueOthers thaws the leases that are not wanted any more. One that cannot be thawed is tried again by the next pass; its freeze
// ends without that too.
func (en *Enforcer) continueOthers(ctx context.Context, want map[string]*hotGPU) {
	for _, id := range slices.Sorted(maps.Keys(en.Cooling.paused)) {
		if want[id] != nil || !en.thawOne(ctx, id) {
			continue
		}
		p := en.Cooling.paused[id]
		delete(en.Cooling.paused, id)
		if l, ok := en.Table.Get(id); ok && p.begun && l.State == lease.Running {
			en.Table.Notice(id, lease.Notice{Kind: "lease.continued", Text: "it is not paused any more" + en.whyContinued(&l)})
			en.Audit("gpushared", "temperature", "continues lease "+id)
			en.Log.Info("a lease continues", "lease", id)
		}
	}
}

// whyContinued says how hot the GPUs of a lease are.
func (en *Enforcer) whyContinued(l *lease.Lease) string {
	for _, id := range l.Place.GPUs {
		if heat, _ := en.Cooling.Heat(id); heat == (health.Heat{}) {
			return ": the temperature of its GPU is not known"
		} else if !heat.Hot {
			return fmt.Sprintf(": its GPU has %d °C", heat.Temperature)
		}
	}
	return ""
}

// consequence says what follows from the heat of a GPU.
func (en *Enforcer) consequence(g *hotGPU, cannot error) string {
	if len(g.Leases)+len(g.Never) == 0 {
		return "no lease is paused, because none of a higher priority runs on it"
	}
	var paused, parts []string
	for _, id := range g.Leases {
		switch p := en.Cooling.paused[id]; {
		case cannot != nil:
			parts = append(parts, fmt.Sprintf("%s is not paused: %s", id, cannot))
		case p != nil && p.err != nil:
			parts = append(parts, fmt.Sprintf("%s is not paused: %s", id, p.err))
		default:
			paused = append(paused, id)
		}
	}
	for _, l := range g.Never {
		parts = append(parts, fmt.Sprintf("%s is not paused: %s", l.Lease, l.Never))
	}
	if len(paused) > 0 {
		parts = slices.Insert(
			parts, 0, fmt.Sprintf("paused until it has %d °C: %s", g.Limit-health.ClearsBelow, strings.Join(paused, ", ")),
		)
	}
	return strings.Join(parts, "; ")
}
