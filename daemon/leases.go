package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// wallTimeout bounds the walling in of one process.
const wallTimeout = 15 * time.Second

// stopGrace is the time between SIGTERM and SIGKILL of a lease that is stopped by name.
const stopGrace = 10 * time.Second

// postLease is gpushare run: it answers with lines until the caller's process is inside its walls.
func (d *Leases) postLease(c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	q, err := decodeRequest(b)
	if err != nil {
		return err
	}
	p := c.caller.process
	if p.Start == 0 {
		return &api.Error{Kind: api.KindUnavailable, Message: "cannot start a lease: the process that asked is gone"}
	}
	if again, ok := d.askedBefore(c, q); ok {
		return again
	}
	held := lease.HeldRun
	var program *launch.Program
	if q.Detach != nil {
		held, p = lease.HeldDetached, cgroup.Process{}
		if program, err = programOf(q, c.caller); err != nil {
			return err
		}
	}
	return d.admit(c, lease.Request{
		Tenant: q.Tenant, Grant: q.Grant, GPU: q.GPU, Member: c.caller.tenants, Admin: c.caller.admin,
		User: c.caller.name, UID: c.caller.uid, Command: q.Command, Wait: (*time.Duration)(q.Wait), Held: held, Key: q.Key,
	}, lease.Process(p), program, fmt.Sprintf("%s started %s", c.caller.name, strings.Join(q.Command, " ")))
}

// admit gives a request its place and puts the process behind its walls; with a program it starts that instead. It answers
// with lines, the last of which tells the outcome.
func (d *Leases) admit(c *call, r lease.Request, p lease.Process, program *launch.Program, started string) error {
	ticket, err := d.table.Submit(r)
	if err != nil {
		return err
	}
	if program != nil {
		d.pending.put(ticket.ID(), program)
		defer d.pending.take(ticket.ID())
	}
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(c.w)
	line := func(g *api.LeaseGrant) {
		startPart(c.w)
		_ = out.Encode(g) // The caller went away: the context ends, and with it the wait.
		_ = http.NewResponseController(c.w).Flush()
	}
	placed, err := ticket.Await(c.ctx(), func(l api.Lease) { line(&api.LeaseGrant{Lease: &l}) })
	if err != nil && d.tasks.Ending() {
		panic(http.ErrAbortHandler) // The daemon ends and the caller comes again: a refusal would send him away.
	}
	if err != nil {
		line(&api.LeaseGrant{Error: d.leaseError(err)})
		return nil
	}
	// From here the start is carried through whatever the caller's connection does: the walls decide, not the socket.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), wallTimeout)
	defer cancel()
	l, inside, err := d.table.Start(ctx, ticket.ID(), p)
	if err != nil {
		ticket.Cancel()
		line(d.startError(err))
		return nil
	}
	d.watchLease(l.ID)
	d.Events.publish(l.Event("lease.started", started))
	wire := l.Wire()
	line(&api.LeaseGrant{Lease: &wire, Environment: inside.Environment, Unset: inside.Unset, Chosen: placed.Chosen, Warnings: inside.Warnings})
	return nil
}

// leaseError is how a refusal travels inside the stream.
func (d *Leases) leaseError(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	d.Log.Warn("a lease was not started", "error", err)
	return &api.Error{Kind: api.KindUnavailable, Message: err.Error(), Hint: "see the journal of gpushared"}
}

// startError is why a lease that had its place was not started; its command may be why.
func (d *Leases) startError(err error) *api.LeaseGrant {
	if f, ok := errors.AsType[*launch.Failure](err); ok {
		return &api.LeaseGrant{Error: &api.Error{Kind: api.KindInvalid, Message: f.Message}, ExitCode: f.Code}
	}
	return &api.LeaseGrant{Error: d.leaseError(err)}
}

// walls implements lease.Walls: it makes the scope of a lease and tells what holds there.
type walls struct{ d *Leases }

// Wall moves the process into a scope of its own with exactly the devices of its lease.
func (w walls) Wall(ctx context.Context, l lease.Lease, p lease.Process) (lease.Inside, error) {
	d := w.d
	if l.Visiting() {
		return d.visit(ctx, &l, p)
	}
	node, want := d.observer.Last(), d.state.Desired()
	rules, missing, err := d.policy.deviceRules(node, &l)
	if err != nil {
		return lease.Inside{}, err
	}
	inside := lease.Inside{Warnings: missing}
	inside.Environment, inside.Unset, err = d.policy.environment(ctx, &l)
	if err != nil {
		return lease.Inside{}, err
	}
	port := d.port
	if !want.enforcing() {
		port = cgroup.Port(d.follow)
	}
	info := port.Info()
	scope := scopeOf(&l, cgroup.Process(p), rules)
	if want.nearStrict(l.Terms.Tenant) {
		var why string
		if scope.MemoryNodes, why = d.policy.memoryNear(node, &l); why != "" {
			inside.Warnings = append(inside.Warnings, why)
		}
	}
	var state cgroup.ScopeState
	if program := d.pending.take(l.ID); program != nil {
		state, err = d.startProgram(ctx, scope, program, &inside, want.enforcing())
	} else {
		state, err = port.StartScope(ctx, scope)
	}
	if err != nil {
		return lease.Inside{}, err
	}
	inside.Status = wallsStatus(info, state)
	d.policy.scopes.set(l.ID, rules)
	if state.MemoryNodes != scope.MemoryNodes {
		missing := fmt.Sprintf("cpu.near: strict: memory is not bound to NUMA node %s", scope.MemoryNodes)
		if !slices.Contains(info.Limits, "cpuset") {
			missing += ": no cpuset limits on " + info.Adapter
		}
		inside.Status.Missing = append(inside.Status.Missing, missing)
	}
	if !want.enforcing() {
		inside.Warnings = append(inside.Warnings, "the node only observes (enforce: observe): the command runs without walls, and no quota is enforced")
		inside.Status.Missing = append(inside.Status.Missing, "everything: the spec says enforce: observe")
	}
	return inside, nil
}

// Unwall kills what is left in the scope. Visitors go on as they were before their lease.
func (w walls) Unwall(ctx context.Context, l lease.Lease) error {
	if l.Visiting() {
		w.d.leave(l.ID)
		if err := w.d.policy.regard(nil, l.ID); err != nil {
			w.d.Log.Warn("cannot take a GPU away from a login", "lease", l.ID, "error", err) // The converge loop does.
		}
		return nil
	}
	// A start that was cut short is recorded nowhere: both are asked, and one that knows nothing of it does nothing.
	for _, port := range []cgroup.Port{w.d.port, w.d.follow} {
		if err := port.KillScope(ctx, l.ID); err != nil {
			return fmt.Errorf("cannot clear its cgroup: %w", err)
		}
	}
	if l.Held == lease.HeldDetached {
		w.d.programEnded(ctx, l.ID)
	}
	return nil
}

func scopeOf(l *lease.Lease, p cgroup.Process, rules []cgroup.DeviceRule) cgroup.Scope {
	return cgroup.Scope{
		ID: l.ID, Slice: cgroup.SliceName{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}, Process: p,
		Description: "gpushare lease " + l.ID, Closed: true, Devices: rules, StopTimeout: stopGrace, Cgroup: l.Cgroup,
	}
}

// wallsStatus says what holds the processes, and what does not.
func wallsStatus(info cgroup.Info, s cgroup.ScopeState) api.WallsStatus {
	w := api.WallsStatus{Cgroup: s.Path, Unit: s.Unit, Devices: info.Devices, Freeze: info.Freeze, MemoryNodes: s.MemoryNodes}
	if !info.Devices {
		w.Missing = append(w.Missing, "device rules: "+whyOpen(info))
	}
	if !info.Freeze {
		w.Missing = append(w.Missing, "time shares: nothing can be frozen ("+info.Detail+")")
	}
	w.Missing = append(w.Missing, missingLimits(info)...)
	return w
}

// missingLimits names the limits that do not act here.
func missingLimits(info cgroup.Info) []string {
	var out []string
	for _, name := range cgroup.LimitNames() {
		if !slices.Contains(info.Limits, name) {
			out = append(out, name+" limits: not on "+info.Adapter)
		}
	}
	return out
}

// whyOpen says why there are no device walls.
func whyOpen(info cgroup.Info) string {
	if info.NoDevices != "" {
		return info.NoDevices
	}
	return "not on " + info.Adapter
}

// portOf is what holds a running lease's processes. On a node that only observes nobody was moved anywhere.
func (d *Attribution) portOf(l *lease.Lease) cgroup.Port {
	if l.Visiting() {
		return d.visitPort(l)
	}
	if l.Walls.Cgroup == "" {
		return d.follow
	}
	return d.port
}

// watchers are the goroutines that wait for the ends of leases.
type watchers struct {
	mu   sync.Mutex // guards what follows
	seen map[string]bool
}

// watchLease ends the lease when its last process is gone. One watcher a lease.
func (d *Leases) watchLease(id string) {
	d.watchers.mu.Lock()
	defer d.watchers.mu.Unlock()
	if d.watchers.seen[id] {
		return
	}
	d.watchers.seen[id] = true
	if l, ok := d.table.Get(id); ok {
		d.escapes.note(&l)
	}
	d.tasks.Go(func() {
		defer func() {
			d.watchers.mu.Lock()
			defer d.watchers.mu.Unlock()
			delete(d.watchers.seen, id)
		}()
		d.awaitEnd(d.tasks.Context(), id)
	})
}

func (d *Leases) awaitEnd(ctx context.Context, id string) {
	l, ok := d.table.Get(id)
	if !ok {
		return
	}
	err := d.attribution.portOf(&l).WaitEmpty(ctx, id)
	killed := errors.Is(err, cgroup.ErrOutOfMemory)
	if err != nil && !killed && !errors.Is(err, cgroup.ErrNotFound) {
		if ctx.Err() != nil {
			return // The daemon ends: leases outlive it.
		}
		d.Log.Error("cannot watch a lease", "lease", id, "error", err)
	}
	why := "the last process ended"
	if now, still := d.table.Get(id); l.Visiting() && (!still || now.Reason != "") {
		why = "it was released, or stopped where it is"
		if still {
			why = now.Reason
		}
	}
	reason := "its last process ended"
	if killed {
		reason = cgroup.ErrOutOfMemory.Error()
	}
	// It ends even while the daemon is being stopped: clearing up is bounded by itself.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), wallTimeout)
	defer cancel()
	for ctx.Err() == nil {
		err := d.table.Ended(end, id, reason)
		if err == nil {
			break
		}
		d.Log.Error("cannot end a lease", "lease", id, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
			end, cancel = context.WithTimeout(context.WithoutCancel(ctx), wallTimeout)
			defer cancel()
		}
	}
	switch {
	case killed:
		why = reason
	case l.Held == lease.HeldDetached:
		why = d.endOf(id)
	}
	d.Events.publish(l.Event("lease.ended", why))
	d.kick()
}

// deleteLease stops a lease the polite way and answers when it is gone.
func (d *Leases) deleteLease(c *call) error {
	id := c.r.PathValue("id")
	l, ok := d.table.Get(id)
	if !ok || !(c.caller.admin || c.caller.isMember(l.Terms.Tenant)) {
		return &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("there is no lease %q that you may stop", id), Hint: "'gpushare lease list' shows them"}
	}
	if !c.caller.mayEnd(&l) {
		return &api.Error{Kind: api.KindDenied, Message: fmt.Sprintf("%s may not stop lease %s: it is of %s", c.caller.name, id, l.User), Hint: "its owner or an administrator may"}
	}
	if err := d.stopLease(c.ctx(), &l, "stopped by "+c.caller.name, stopGrace); err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]string{"stopped": id})
}

// stopLease is thaw, SIGTERM, grace, kill. It returns when the lease is gone.
func (d *Leases) stopLease(ctx context.Context, l *lease.Lease, reason string, grace time.Duration) error {
	if err := d.table.Ending(l.ID, reason); err != nil {
		return err
	}
	d.table.Notice(l.ID, lease.Notice{Kind: "lease.stopping", Text: "it is being stopped: " + reason})
	d.awaitDelivery(ctx)
	if l.Visiting() {
		return d.stopper.stopVisitor(ctx, l, reason, grace)
	}
	port := d.attribution.portOf(l)
	if err := port.Thaw(ctx, l.ID); err != nil && !errors.Is(err, cgroup.ErrNotFound) && !errors.Is(err, cgroup.ErrNotSupported) {
		return fmt.Errorf("cannot thaw lease %s: %w", l.ID, err)
	}
	d.stopper.terminate(ctx, port, l.ID)
	wait, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := port.WaitEmpty(wait, l.ID); err != nil && !errors.Is(err, cgroup.ErrNotFound) {
		if err := port.KillScope(ctx, l.ID); err != nil {
			return fmt.Errorf("cannot kill lease %s: %w", l.ID, err)
		}
	}
	if err := d.table.Ended(ctx, l.ID, reason); err != nil {
		return err
	}
	return d.stopper.awaitGone(ctx, l.ID)
}

// terminate sends SIGTERM to every process of a lease, by descriptors that cannot mean another process.
func (d *Stopper) terminate(ctx context.Context, port cgroup.Port, id string) {
	members, err := port.Members(ctx, id)
	if err != nil {
		return // It is gone.
	}
	for _, m := range members {
		p, err := procfs.OpenPidfd(m.PID, m.Start)
		if err != nil {
			continue // It ended.
		}
		if owner, ok := port.Owner(m.PID); ok && owner == id {
			if err := p.Signal(unix.SIGTERM); err != nil {
				d.Log.Warn("cannot signal a process", "pid", m.PID, "lease", id, "error", err)
			}
		}
		_ = p.Close() // Nothing is written through it.
	}
}

// getEnv answers the environment of the lease that the caller runs in.
func (d *Leases) getEnv(c *call) error {
	p := c.caller.process
	id, ok := d.attribution.ownerOf(p.PID)
	// The pid was read when it connected. If it is another process by now, that one's lease is nobody's business here.
	if !ok || !procfs.Alive(p.PID, p.Start) {
		return &api.Error{Kind: api.KindNotFound, Message: "this process runs in no lease", Hint: "start one with 'gpushare run -- $SHELL'"}
	}
	l, ok := d.table.Get(id)
	if !ok || !(c.caller.admin || c.caller.isMember(l.Terms.Tenant)) {
		return &api.Error{Kind: api.KindNotFound, Message: "the lease of this process is gone, or of a tenant that you are no member of"}
	}
	env, unset, err := d.policy.environment(c.ctx(), &l)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, api.Environment{Lease: id, Environment: env, Unset: unset})
}

// ownerOf tells whose process it is, whichever port holds it: a scope of its own before the tree that it is in, and that
// before the cgroup.
func (d *Attribution) ownerOf(pid int) (string, bool) {
	if id, ok := d.port.Owner(pid); ok {
		return id, true
	}
	if d.port != cgroup.Port(d.follow) {
		if id, ok := d.follow.Owner(pid); ok {
			return id, true
		}
	}
	return d.visitors.Owner(pid)
}

// manyProcesses is from how many on all of them are listed at once: one read for each would take longer.
const manyProcesses = 64

// owners is ownerOf for about so many processes, as of now.
func (d *Attribution) owners(about int) func(pid int) (string, bool) {
	if about < manyProcesses {
		return d.ownerOf
	}
	held, visiting := censusOf(d.port), censusOf(d.visitors)
	return func(pid int) (string, bool) {
		if id, ok := held(pid); ok {
			return id, true
		}
		if d.port != cgroup.Port(d.follow) {
			if id, ok := d.follow.Owner(pid); ok {
				return id, true
			}
		}
		return visiting(pid)
	}
}

// censusOf asks for all at once where the adapter can.
func censusOf(p cgroup.Port) func(pid int) (string, bool) {
	list := p.Abilities().PIDs
	if list == nil {
		return p.Owner
	}
	all := list()
	return func(pid int) (string, bool) { id, ok := all[pid]; return id, ok }
}

// saveLeases keeps the table until the next boot, before anybody is told of a lease.
func (d *Leases) saveLeases(_ context.Context, state []byte) error {
	d.saveEndings()
	return d.runDir.Write("leases.json", state)
}

// restoreLeases finds the leases of an earlier life again, and ends those whose processes are gone.
func (d *Leases) restoreLeases(ctx context.Context) error {
	if err := d.restoreEndings(); err != nil {
		d.Log.Warn("what is known of leases that ended is lost", "error", err)
	}
	b, err := d.runDir.Read("leases.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := d.table.Restore(b); err != nil {
		return err
	}
	for _, l := range d.table.Live() {
		found, err := d.found(ctx, &l)
		if err != nil {
			return err // The daemon ends: leases outlive it.
		}
		if found {
			d.table.Found(l.ID, l.Process)
			d.watchLease(l.ID)
			continue
		}
		d.escapes.note(&l) // They may have left instead.
		end, cancel := context.WithTimeout(ctx, wallTimeout)
		if err := d.table.Ended(end, l.ID, "its processes ended while the daemon was away"); err != nil {
			d.Log.Error("cannot end a lease", "lease", l.ID, "error", err)
		}
		cancel()
	}
	d.programs.sweep(func(id string) bool {
		_, live := d.table.Get(id)
		_, known := d.endings.get(id)
		return live || known
	})
	d.awaitReturns()
	return nil
}

// findAgain is the pause between two attempts to find a lease again.
const findAgain = time.Second

// found finds one lease's processes again. While it cannot be told whether they live, as long as the service manager does
// not answer, it asks again: a lease whose end is not known is not ended.
func (d *Leases) found(ctx context.Context, l *lease.Lease) (bool, error) {
	for {
		try, cancel := context.WithTimeout(ctx, wallTimeout)
		if l.Held == lease.HeldDetached {
			d.findProgram(try, l)
		}
		found, err := d.adopt(try, l)
		cancel()
		if err == nil {
			return found, nil
		}
		d.Log.Warn("cannot find a lease again", "lease", l.ID, "error", err)
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(findAgain):
		}
	}
}

// adopt finds one lease's processes again. Nobody stays frozen: the scheduler starts anew.
func (d *Leases) adopt(ctx context.Context, l *lease.Lease) (bool, error) {
	if l.Visiting() {
		return d.adoptVisitor(ctx, l), nil
	}
	for _, port := range []cgroup.Port{d.port, d.follow} {
		if port == cgroup.Port(d.follow) && l.Walls.Cgroup != "" {
			break // It had walls: whoever of it lives outside them has left.
		}
		state, err := port.Adopt(ctx, scopeOf(l, cgroup.Process(l.Process), nil))
		if errors.Is(err, cgroup.ErrNotFound) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", port.Info().Adapter, err)
		}
		if err := port.Thaw(ctx, l.ID); err != nil && !errors.Is(err, cgroup.ErrNotSupported) {
			d.Log.Error("cannot thaw a lease that was found again", "lease", l.ID, "error", err)
		}
		d.table.SetWalls(l.ID, wallsStatus(port.Info(), state))
		return true, nil
	}
	return false, nil
}

// usage answers who uses what from the lease table as it is now.
func (d *Attribution) usage() usage { return d.usageUnder(d.state.Desired(), opened{}) }

// usageUnder is usage with what a spec says of the processes that are in the way, and with who has devices open.
func (d *Attribution) usageUnder(want *desired, o opened) usage {
	live, st := d.table.Live(), d.state.Kept()
	return usage{
		instance: func(id gpu.UUID, p gpu.Placement) []string {
			var out []string
			for i := range live {
				if pl := &live[i].Place; pl.Instance != nil && *pl.Instance == p && slices.Contains(pl.GPUs, id) && !staleIn(st, &live[i]) {
					out = append(out, live[i].ID)
				}
			}
			return out
		},
		gpu: func(id gpu.UUID) []string {
			var out []string
			for i := range live {
				if slices.Contains(live[i].Place.GPUs, id) {
					out = append(out, live[i].ID)
				}
			}
			return out
		},
		ours: d.state.ours,
		adopted: func(id gpu.UUID, p gpu.Placement) bool {
			a := st.Achieved[id]
			m := markOf(&a, p)
			return m != nil && m.Adopted
		},
		process: func(m *mps.State, pid int) deviceHolder { return d.holderOf(want, m, pid) },
		opened:  o,
	}
}
