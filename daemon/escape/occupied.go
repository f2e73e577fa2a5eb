package escape

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// occupants are the processes of no lease that use a place which a lease would have alone.
type occupants struct {
	mu    locks.Mutex[locks.Leaf] // guards known
	known map[occupant]bool
}

// occupant is a process on an exclusive GPU or on a MIG instance.
type occupant struct {
	process cgroup.Process
	place   store.Where
	opened  bool // it has no context: it only has the device open
}

// occupantOn returns the place of a process on a GPU; ok is false if no lease would have it alone.
func occupantOn(g *observe.GPU, mode string, p *gpu.Process, start uint64) (c occupant, ok bool) {
	c = occupant{process: cgroup.Process{PID: p.PID, Start: start}, place: store.Where{GPU: g.Identity.UUID}}
	if mode != api.ModeMIG || p.GI == nil {
		return c, mode == api.ModeExclusive
	}
	i := slices.IndexFunc(g.Instances, func(in gpu.Instance) bool { return in.ID == *p.GI })
	if i < 0 {
		return c, false
	}
	in := &g.Instances[i]
	c.place.Instance = in.Placement
	for j := range in.Compute {
		if len(in.Compute) > 1 && p.CI != nil && in.Compute[j].ID == *p.CI {
			c.place.Compute = in.Compute[j].UUID
		}
	}
	return c, true
}

// openPlaces returns the places that a process has open, of those that a lease would have alone. Who has the node of a
// partitioned GPU open, and no capability node of an instance, uses no instance.
func openPlaces(g *observe.GPU, mode string, open *planner.OpenDevices, pid int) (places []store.Where) {
	id := g.Identity.UUID
	if mode == api.ModeExclusive && slices.Contains(open.GPUs[id], pid) {
		places = append(places, store.Where{GPU: id})
	}
	for i := range g.Instances {
		in := &g.Instances[i]
		if mode != api.ModeMIG || !slices.Contains(open.Instances[planner.InstanceKey{GPU: id, GI: in.ID}], pid) {
			continue
		}
		if len(in.Compute) < 2 {
			places = append(places, store.Where{GPU: id, Instance: in.Placement})
			continue
		}
		for _, c := range in.Compute { // Each program that uses one has the capability node of the instance open as well.
			if slices.Contains(open.Compute[planner.ComputeKey{GPU: id, Device: c.UUID}], pid) {
				places = append(places, store.Where{GPU: id, Instance: in.Placement, Compute: c.UUID})
			}
		}
	}
	return places
}

// setOccupants replaces the occupants. Their places take no lease.
func (e *Escapes) setOccupants(change func(known map[occupant]bool) map[occupant]bool) {
	if e.replaceOccupants(change) {
		e.Changed() // Without the lock.
	}
}

func (e *Escapes) replaceOccupants(change func(known map[occupant]bool) map[occupant]bool) (changed bool) {
	o := &e.occupied
	o.mu.Lock()
	defer o.mu.Unlock()
	now := change(maps.Clone(o.known))
	if maps.Equal(o.known, now) {
		return false
	}
	o.known = now
	var closed closing.Closures
	for c := range now {
		if len(closed.At(c.place)) == 0 {
			closed = append(closed, store.Closure{Where: c.place, Reason: lease.OccupiedText})
		}
	}
	e.State.SetFound(closing.Occupied, closed)
	return true
}

// occupies reports whether a process of no lease takes a place from leases. Processes of gpushare, of the units in node.quiesce
// and of a display do not: they use GPUs next to the leases.
func (e *Escapes) occupies(p *gpu.Process, mps bool, st procfs.Stat, quiesced []string) bool {
	if mps || st.PID == e.WorkerPID() || p.Kind == gpu.GraphicsProcess && stop.DecidePID(st.PID) != stop.MayStop {
		return false
	}
	cg, err := procfs.Cgroup(st.PID)
	return err != nil || !slices.ContainsFunc(quiesced, func(q string) bool { return cgroup.Below(cg, q) })
}

// alone reports whether a lease of a GPU in this mode has its GPU or its instance alone.
func alone(mode string) bool { return mode == api.ModeExclusive || mode == api.ModeMIG }

// exitTime is how long a new lease waits for processes of an ended one that are still in the driver's list.
const exitTime = 5 * time.Second

// exitPoll is the time between two looks at the list: the driver reports no end of a process.
const exitPoll = 20 * time.Millisecond

// Vacant returns why a lease may not start on its place: a process of no lease has a context there, or is known to have it open while
// logins are closed. It waits for processes that are just exiting.
func (e *Escapes) Vacant(ctx context.Context, l *lease.Lease) error {
	want := e.State.Desired()
	if !want.Enforcing() || l.InPlace() || !alone(l.Terms.Kind()) {
		return nil
	}
	if err := e.notOpen(ctx, want, l); err != nil {
		return err
	}
	quiesced := e.quiesceUnits(ctx, want)
	for deadline := e.Now().Add(exitTime); ; {
		exiting := false
		for _, id := range l.Place.GPUs {
			some, err := e.findOccupant(ctx, l, id, quiesced)
			if err != nil {
				return err
			}
			exiting = exiting || some
		}
		if !exiting || e.Now().After(deadline) {
			return nil
		}
		if !loop.Pause(ctx, exitPoll) {
			return ctx.Err()
		}
	}
}

// findOccupant returns an error if a process of no lease is on the place of a lease. exiting: one is in the driver's list that has
// exited, or that is of another lease, which has ended: its place would not be free otherwise.
func (e *Escapes) findOccupant(ctx context.Context, l *lease.Lease, id gpu.UUID, quiesced []string) (exiting bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	g, ok := e.Observer.Last().GPU(id)
	if !ok {
		return false, nil // The device rules find it missing.
	}
	processes, err := e.processesAt(ctx, g, l)
	if err != nil {
		return false, &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot start a lease on %s: cannot read its processes: %v", g.Identity.Name(), err),
			Hint:    "see 'gpushare doctor'",
		}
	}
	for i := range processes {
		p := &processes[i]
		st, err := procfs.Read(p.PID)
		c, ok := occupantOn(g, l.Terms.Kind(), p, st.Start)
		if !ok || !contains(l, c.place) {
			continue
		}
		of, attributed := e.Attribution.LeaseOf(p.PID)
		switch {
		case attributed && of == l.ID:
		case e.isElsewhere(p.PID, c.place):
			e.addOccupant(c)
			return false, errOccupied(g)
		case err != nil || st.Dead() || attributed:
			exiting = true
		case e.occupies(p, attribution.ServesMPS(g.ControlDaemons(), st), st, quiesced):
			e.addOccupant(c)
			return false, errOccupied(g)
		}
	}
	return exiting, nil
}

// processesAt reads the processes on a GPU; where the lease has a MIG instance, at least those of that.
func (e *Escapes) processesAt(ctx context.Context, g *observe.GPU, l *lease.Lease) ([]gpu.Process, error) {
	if l.Place.Instance != nil {
		if i := slices.IndexFunc(g.Instances, func(in gpu.Instance) bool { return in.Placement == *l.Place.Instance }); i >= 0 {
			return e.Driver.InstanceProcesses(ctx, g.Identity.UUID, g.Instances[i].ID)
		}
	}
	return e.Driver.Processes(ctx, g.Identity.UUID)
}

// addOccupant adds one until the next search.
func (e *Escapes) addOccupant(c occupant) {
	e.setOccupants(func(known map[occupant]bool) map[occupant]bool {
		if known == nil {
			known = map[occupant]bool{}
		}
		known[c] = true
		return known
	})
}

// contains reports whether a place is one that a lease has.
func contains(l *lease.Lease, at store.Where) bool {
	if !slices.Contains(l.Place.GPUs, at.GPU) || l.Place.Instance != nil && *l.Place.Instance != at.Instance {
		return false
	}
	return l.Place.Compute == "" || at.Compute == "" || l.Place.Compute == at.Compute
}

func (e *Escapes) isElsewhere(pid int, place store.Where) bool {
	_, _, elsewhere := e.fromElsewhere(pid, place)
	return elsewhere
}

func errOccupied(g *observe.GPU) error {
	return &lease.Occupied{GPU: g.Identity.UUID, Err: &api.Error{
		Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot start a lease on %s: %s", g.Identity.Name(), lease.OccupiedText),
		Hint: "wait for a place with --wait; 'gpushare status' names the process to administrators",
	}}
}

// notOpen returns an error if one of the known processes of no lease still has the place of a lease open. Such a process is killed, but
// its exit may take long: a tracer keeps it, or a call of the driver. Processes that opened it since the last listing are not known.
func (e *Escapes) notOpen(ctx context.Context, want *state.Desired, l *lease.Lease) error {
	e.occupied.mu.Lock()
	known := maps.Clone(e.occupied.known)
	e.occupied.mu.Unlock()
	node := e.Observer.Last()
	for c := range known {
		if !c.opened || !contains(l, c.place) {
			continue
		}
		g, ok := node.GPU(c.place.GPU)
		st, runs := e.unattributed(c.process.PID)
		if !runs {
			st, _, runs = e.fromElsewhere(c.process.PID, c.place)
		}
		if !ok || !runs || st.Start != c.process.Start {
			continue
		}
		nodes := e.Attribution.OpenNodesOf(ctx, node.GPUs, c.process.PID)
		own, failed := nodes.Own(ctx, c.process.PID)
		if failed != nil {
			own = nodes.Devices() // That it opened it was read before; that this cannot be read now frees no place.
		}
		if slices.Contains(openPlaces(g, want.Mode(c.place.GPU), &own, c.process.PID), c.place) {
			return errOccupied(g)
		}
	}
	return nil
}
