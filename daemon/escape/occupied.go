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
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
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
	place   state.Place
}

// occupantOn returns the place of a process on a GPU; ok is false if no lease would have it alone.
func occupantOn(g *observe.GPU, mode string, p *gpu.Process, start uint64) (c occupant, ok bool) {
	c = occupant{process: cgroup.Process{PID: p.PID, Start: start}, place: state.Place{GPU: g.Identity.UUID}}
	if mode != api.ModeMIG || p.GI == nil {
		return c, mode == api.ModeExclusive
	}
	i := slices.IndexFunc(g.Instances, func(in gpu.Instance) bool { return in.ID == *p.GI })
	if i < 0 {
		return c, false
	}
	c.place.Instance = g.Instances[i].Placement
	return c, true
}

// setOccupants replaces the occupants. Their places take no lease.
func (e *Escapes) setOccupants(change func(known map[occupant]bool) map[occupant]bool) {
	o := &e.occupied
	o.mu.Lock()
	defer o.mu.Unlock()
	now := change(maps.Clone(o.known))
	if maps.Equal(o.known, now) {
		return
	}
	o.known = now
	places := map[state.Place]bool{}
	for c := range now {
		places[c.place] = true
	}
	e.State.SetOccupied(places)
	e.Changed()
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

// Vacant returns why a lease may not start on its place: a process of no lease has a context there. It waits for processes
// that are just exiting.
func (e *Escapes) Vacant(ctx context.Context, l *lease.Lease) error {
	want := e.State.Desired()
	if !want.Enforcing() || l.InPlace() || !alone(l.Terms.Kind()) {
		return nil
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
	processes, err := e.Driver.Processes(ctx, id)
	if err != nil {
		return false, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot start a lease on GPU %d: cannot read its processes: %v", g.Identity.Index, err), Hint: "see gpushare doctor"}
	}
	for i := range processes {
		p := &processes[i]
		st, err := procfs.Read(p.PID)
		c, ok := occupantOn(g, l.Terms.Kind(), p, st.Start)
		if !ok || l.Place.Instance != nil && *l.Place.Instance != c.place.Instance {
			continue
		}
		of, attributed := e.Attribution.LeaseOf(p.PID)
		switch {
		case attributed && of == l.ID:
		case err != nil || st.Dead() || attributed:
			exiting = true
		case e.occupies(p, attribution.ServesMPS(g.MPS, st), st, quiesced):
			e.setOccupants(func(known map[occupant]bool) map[occupant]bool {
				if known == nil {
					known = map[occupant]bool{}
				}
				known[c] = true
				return known
			})
			return false, &api.Error{
				Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot start a lease on GPU %d: a process of no lease uses it", g.Identity.Index),
				Hint: "wait for a place with --wait; 'gpushare status' names the process to administrators",
			}
		}
	}
	return exiting, nil
}
