package escape

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// unattributedProcess is a process that uses managed GPUs and is in no lease.
type unattributedProcess struct {
	process cgroup.Process
	name    string
	gpu     gpu.UUID // the first GPU that it uses
	where   string   // the GPU in messages
	user    string   // "uid 1000" when the host does not know it
	closes  bool     // its GPU or instance takes no lease that would have it alone
	exempt  string   // why it is never stopped; empty: it may be stopped
	opened  bool     // it has no context: it only has the device open
	// received is why an open device is no use by the process: another user may have passed it. Such a process is only shown.
	received string
	lease    string // the lease of another place that it is in
}

// subject names the process and its user.
func (s *unattributedProcess) subject() string {
	if s.user == "" {
		return fmt.Sprintf("pid %d (%s)", s.process.PID, s.name)
	}
	return fmt.Sprintf("pid %d (%s) of %s", s.process.PID, s.name, s.user)
}

// A managed GPU without leases is checked every idleInterval. To list processes costs a driver call for each list of each
// instance, so the GPU memory is read first: while it is unchanged, a listing is valid for listingMaxAge, because each
// process that uses a GPU takes some of its memory: one may have ended and another taken as much. A listing without a process is
// valid until the next observation of the node: there is none that could have ended. On GPUs with leases the processes are listed with
// every sample.
const (
	idleInterval  = 2 * time.Second
	listingMaxAge = 5 * idleInterval
)

// unattributedTracker records since when each unattributed process is known. Only unattributedLoop uses it.
type unattributedTracker struct {
	since  map[cgroup.Process]time.Time
	listed map[gpu.UUID]listing // GPUs without leases
	closed closedLogins
}

// listing is the last list of the processes on a GPU.
type listing struct {
	at         time.Time
	memoryRead time.Time // when the GPU memory was read last; not before at
	used       uint64    // bytes of GPU memory in use before the processes were listed
	processes  []gpu.Process
}

// unattributedLoop reports processes without a lease on managed GPUs, and stops them one at a time if the spec says so.
func (e *Escapes) unattributedLoop(ctx context.Context) {
	x := unattributedTracker{listed: map[gpu.UUID]listing{}}
	for {
		if !loop.Every(ctx, e.SampleInterval()) {
			return
		}
		want := e.State.Desired()
		found := x.find(ctx, e, want)
		if x.closed.adopted(want, e.Now()) {
			found = e.killOutside(ctx, found)
		}
		if due, ok := x.report(e, want, found); ok {
			e.stopUnattributed(ctx, due)
		}
	}
}

// report reports the unattributed processes, and returns the one that is due to be stopped.
func (x *unattributedTracker) report(d *Escapes, want *state.Desired, found []unattributedProcess) (due unattributedProcess, ok bool) {
	now := d.Now()
	stops := want.Enforcing() && want.StopsUnattributed()
	since, conditions := map[cgroup.Process]time.Time{}, map[string]api.Condition{}
	for _, s := range found {
		at, known := x.since[s.process]
		if !known {
			at = now
		}
		since[s.process] = at
		decision := "it is only reported (node.isolation.unattributed: report)"
		switch {
		case s.exempt != "":
			decision = "it is not stopped: " + s.exempt
		case stops:
			decision = "it is stopped " + api.Duration(stop.UnattributedGrace).String() +
				" after this was first observed (node.isolation.unattributed: stop)"
		}
		what := "without a lease"
		if s.lease != "" {
			what, decision = "from a lease of another place", "it is not stopped for that: 'gpushare lease stop "+s.lease+"' does"
		}
		text := fmt.Sprintf("%s uses %s %s; %s", s.subject(), s.where, what, decision)
		if s.received != "" {
			const format = "%s has %s open %s; it is not stopped for that, and closes nothing: %s"
			text = fmt.Sprintf(format, s.subject(), s.where, what, s.received)
		}
		if s.closes {
			text += "; no lease gets what it uses until it ends"
		}
		conditions[fmt.Sprint(s.process)] = api.Condition{
			GPU:     string(s.gpu),
			Message: text,
			Hint:    "'gpushare run' starts a command in a lease, 'gpushare lease attach --pid' attaches a running process to one",
		}
		if !known {
			d.Events.Publish(api.Event{Kind: "gpu.unattributed", GPU: string(s.gpu), Message: text})
		}
		// One at a time, the oldest first.
		if stops && s.exempt == "" && now.Sub(at) >= stop.UnattributedGrace && (!ok || at.Before(since[due.process])) {
			due, ok = s, true
		}
	}
	x.since = since
	if want.Enforcing() {
		d.Conditions.Replace("unattributed", conditions)
	} else {
		d.Conditions.Replace("unattributed", nil)
	}
	return due, ok
}

// refresh reads the GPUs for which it is time, all at once: the worker wakes up once for them, and none waits for another.
func (x *unattributedTracker) refresh(ctx context.Context, d *Escapes, want *state.Desired, node *observe.Node) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	last := map[*observe.GPU]listing{} // of those that are read
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.Err != nil || !want.Manages(g.Identity.UUID) {
			continue
		}
		if l, due := x.due(d, want, g, node.At); due {
			last[g] = l
		}
	}
	var mu locks.Mutex[locks.Leaf] // guards x.listed among the goroutines
	var reads sync.WaitGroup
	for g, l := range last {
		reads.Go(func() {
			l := d.list(ctx, g, l)
			mu.Lock()
			defer mu.Unlock()
			x.listed[g.Identity.UUID] = l
		})
	}
	reads.Wait()
}

// due returns the last listing of a GPU, and whether it is to be refreshed. A GPU without leases is not sampled, and between two
// observations of the node half a minute may pass, so it is read for this. seen is when the node was observed last.
func (x *unattributedTracker) due(d *Escapes, want *state.Desired, g *observe.GPU, seen time.Time) (l listing, due bool) {
	id := g.Identity.UUID
	if d.Samples.Has(id) || !want.Enforcing() {
		delete(x.listed, id)
		return listing{}, false
	}
	now := d.Now()
	l, known := x.listed[id]
	if now.Sub(seen) < idleInterval && (!known || l.at.Before(seen)) { // The node was observed for another reason.
		l, known = listing{at: seen, memoryRead: seen, used: g.Memory.Used, processes: g.Processes}, true
		x.listed[id] = l
	}
	return l, !known || now.Sub(l.memoryRead) >= idleInterval
}

// list reads the memory of a GPU, and its processes if they may be others than in the last listing.
func (e *Escapes) list(ctx context.Context, g *observe.GPU, last listing) listing {
	id, now := g.Identity.UUID, e.Now()
	m, err := e.Driver.Memory(ctx, id)
	if err == nil && m.Used == last.used && !last.at.IsZero() && (len(last.processes) == 0 || now.Sub(last.at) < listingMaxAge) {
		last.memoryRead = now
		return last
	}
	processes, listErr := e.Driver.Processes(ctx, id)
	switch {
	case err == nil && listErr == nil:
		return listing{at: now, memoryRead: now, used: m.Used, processes: processes}
	case listErr == nil:
		last.processes = processes
	case last.at.IsZero():
		last.processes = g.Processes
	}
	last.memoryRead = now // What was not read is read at the next time.
	return last
}

// processes returns the processes on a GPU as they were read last.
func (x *unattributedTracker) processes(g *observe.GPU) []gpu.Process {
	if l, ok := x.listed[g.Identity.UUID]; ok {
		return l.processes
	}
	return g.Processes
}

// fromElsewhere reads a process that runs and is in a lease that does not have a place: another lease passed it a descriptor, or it
// was there before it entered its lease.
func (e *Escapes) fromElsewhere(pid int, place store.Where) (st procfs.Stat, leaseID string, ok bool) {
	leaseID, attributed := e.Attribution.LeaseOf(pid)
	if !attributed {
		return st, "", false
	}
	l, known := e.Table.Get(leaseID)
	if !known || !l.State.Live() || contains(&l, place) {
		return st, "", false
	}
	st, err := procfs.Read(pid)
	return st, leaseID, err == nil && !st.Dead()
}

// unattributed reads a process that runs and is in no lease. One that was in a lease a second ago is not read: if it has left, it is
// found as an escaped one.
func (e *Escapes) unattributed(pid int) (procfs.Stat, bool) {
	if e.Escaped.wasInside(pid, e.Now()) {
		return procfs.Stat{}, false
	}
	if _, attributed := e.Attribution.LeaseOf(pid); attributed {
		return procfs.Stat{}, false
	}
	st, err := procfs.Read(pid)
	return st, err == nil && !st.Dead()
}

// find returns the processes on managed GPUs that are in no lease. While logins are closed, those that only have a device open
// belong to them.
func (x *unattributedTracker) find(ctx context.Context, d *Escapes, want *state.Desired) []unattributedProcess {
	var out []unattributedProcess
	occupied := map[occupant]bool{}
	node := d.Samples.Overlay(d.Observer.Last())
	quiesced := sync.OnceValue(func() []string { return d.quiesceUnits(ctx, want) }) // cgroups of units that are known to use GPUs
	open := x.closed.openers(ctx, d, want, node)
	x.refresh(ctx, d, want, node)
	add := func(s unattributedProcess, g *observe.GPU, st procfs.Stat) {
		s.process, s.name, s.gpu, s.where = cgroup.Process{PID: st.PID, Start: st.Start}, st.Name, g.Identity.UUID, g.Identity.Name()
		if uid, err := procfs.UID(st.PID); err == nil && d.UserName != nil {
			s.user = d.UserName(int(uid))
		}
		s.exempt = d.whyExempt(attribution.ServesMPS(g.ControlDaemons(), st), st, quiesced())
		if s.lease != "" {
			s.exempt = "it is in lease " + s.lease
		}
		s.exempt = cmp.Or(s.received, s.exempt)
		out = withProcess(out, s)
	}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.Err != nil || !want.Manages(g.Identity.UUID) {
			continue
		}
		for _, p := range x.processes(g) {
			st, ok := d.unattributed(p.PID)
			if !ok {
				c, closes := occupantOn(g, want.Mode(g.Identity.UUID), &p, 0)
				if !want.Enforcing() || !closes && alone(want.Mode(g.Identity.UUID)) {
					continue
				}
				// On a GPU that leases share it closes nothing. What it uses there is counted for no lease of the GPU.
				st, id, elsewhere := d.fromElsewhere(p.PID, c.place)
				if !elsewhere || !closes && attribution.ServesMPS(g.ControlDaemons(), st) {
					continue
				}
				if closes {
					c.process.Start = st.Start
					occupied[c] = true
				}
				add(unattributedProcess{closes: closes, lease: id}, g, st)
				continue
			}
			c, closes := occupantOn(g, want.Mode(g.Identity.UUID), &p, st.Start)
			if closes = closes && want.Enforcing() &&
				d.occupies(&p, attribution.ServesMPS(g.ControlDaemons(), st), st, quiesced()); closes {
				occupied[c] = true
			}
			add(unattributedProcess{closes: closes}, g, st)
		}
		for _, pid := range open.Users(g.Identity.UUID) {
			if !d.mayBeOutside(pid) {
				continue
			}
			s, st, places, ok := x.opened(ctx, d, want.Mode(g.Identity.UUID), g, pid, quiesced)
			if !ok {
				continue
			}
			for _, place := range places {
				occupied[occupant{process: cgroup.Process{PID: pid, Start: st.Start}, place: place, opened: true}] = true
			}
			add(s, g, st)
		}
	}
	x.reportOthers(d, node)
	d.setOccupants(func(map[occupant]bool) map[occupant]bool { return occupied })
	return slices.DeleteFunc(out, func(s unattributedProcess) bool { return s.exempt == ownProcess })
}

// opened returns a process that has a GPU or one of its instances open and is in no lease, or in one of another place, and the places
// that it takes from leases.
func (x *unattributedTracker) opened(
	ctx context.Context, d *Escapes, mode string, g *observe.GPU, pid int, quiesced func() []string,
) (s unattributedProcess, st procfs.Stat, places []store.Where, ok bool) {
	s.opened = true
	if st, ok = d.unattributed(pid); ok {
		if d.whyExempt(attribution.ServesMPS(g.ControlDaemons(), st), st, quiesced()) == "" {
			own, received := x.closed.own(ctx, pid)
			if !slices.Contains(own.Users(g.Identity.UUID), pid) {
				s.received = received
			}
			places = openPlaces(g, mode, own, pid)
		}
		s.closes = len(places) > 0
		return s, st, places, true
	}
	for _, place := range openPlaces(g, mode, &x.closed.users, pid) {
		there, id, elsewhere := d.fromElsewhere(pid, place)
		if !elsewhere {
			continue
		}
		st, s.lease, ok = there, id, true
		own, received := x.closed.own(ctx, pid)
		if slices.Contains(openPlaces(g, mode, own, pid), place) {
			places = append(places, place)
		} else {
			s.received = received
		}
	}
	if s.closes = len(places) > 0; s.closes {
		s.received = ""
	}
	return s, st, places, ok
}

// withProcess adds a process once, with the first GPU that it uses. What it received shields nothing else that it has.
func withProcess(list []unattributedProcess, s unattributedProcess) []unattributedProcess {
	known := slices.IndexFunc(list, func(o unattributedProcess) bool { return o.process == s.process })
	switch {
	case known < 0:
		return append(list, s)
	case list[known].received != "" && s.received == "":
		list[known] = s
	}
	return list
}

// ownProcess is the exemption of gpushare's own processes, which are not reported either.
const ownProcess = "it is gpushare's own"

// quiesceUnits returns the cgroups of the units in node.quiesce, which use GPUs next to the tenants.
func (e *Escapes) quiesceUnits(ctx context.Context, want *state.Desired) []string {
	var out []string
	if e.Units == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, unit := range want.Spec.Node.Quiesce {
		if cg, err := e.Units.UnitCgroup(ctx, unit); err == nil {
			out = append(out, cg)
		}
	}
	return out
}

// whyExempt returns why a process is never stopped, whatever the spec says; empty: it may be stopped.
func (e *Escapes) whyExempt(mps bool, st procfs.Stat, quiesced []string) string {
	if mps || st.PID == e.WorkerPID() {
		return ownProcess
	}
	switch stop.DecidePID(st.PID) {
	case stop.IsRoot, stop.Unknown:
		return "it belongs to root"
	case stop.IsSystem:
		return "it belongs to the system"
	case stop.MayStop:
	}
	if cg, err := procfs.Cgroup(st.PID); err == nil {
		for _, q := range quiesced {
			if cgroup.Below(cg, q) {
				return "its unit is listed in node.quiesce"
			}
		}
	}
	return ""
}

// stopUnattributed stops one process without a lease.
func (e *Escapes) stopUnattributed(ctx context.Context, s unattributedProcess) {
	p, err := procfs.OpenPidfd(s.process.PID, s.process.Start)
	if err != nil {
		return // It has exited.
	}
	one := stop.NewProcesses(p).Reporting(e.Reporter)
	defer one.Close()
	// The pidfd is open now, so the pid cannot be reused between this check and the signal.
	if _, attributed := e.Attribution.LeaseOf(s.process.PID); attributed {
		return
	}
	if !e.stillUses(ctx, s) {
		return
	}
	escalation := stop.Escalation{Target: one, Notify: func(context.Context) {
		text := fmt.Sprintf("%s uses %s without a lease: it is stopped", s.subject(), s.where)
		e.Events.Publish(api.Event{Kind: "gpu.unattributed.stopped", GPU: string(s.gpu), Message: text})
		e.Audit("gpushared", "unattributed", text)
	}}
	if err := escalation.Run(ctx, stop.StopGrace); err != nil && ctx.Err() == nil {
		e.Log.Error("cannot stop a process without a lease", "pid", s.process.PID, "error", err)
	}
}

// stillUses reads the processes of the GPU again: the last reading may be half a minute old.
func (e *Escapes) stillUses(ctx context.Context, s unattributedProcess) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if s.opened {
		own, _ := e.Attribution.OpenNodesOf(ctx, e.Observer.Last().GPUs, s.process.PID).Own(ctx, s.process.PID)
		return slices.Contains(own.Users(s.gpu), s.process.PID)
	}
	processes, err := e.Driver.Processes(ctx, s.gpu)
	return err == nil && slices.ContainsFunc(processes, func(p gpu.Process) bool { return p.PID == s.process.PID })
}
