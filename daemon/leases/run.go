package leases

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// PostLease is gpushare run: it answers with JSON lines until the caller's process is isolated.
func (ls *Leases) PostLease(c *server.Call) error {
	q, err := decodeRequest(c)
	if err != nil {
		return err
	}
	p := c.Caller.Process
	if p.Start == 0 {
		return &api.Error{Kind: api.KindUnavailable, Message: "cannot start a lease: the calling process has exited"}
	}
	if again, ok := ls.answerRepeated(c, q); ok {
		return again
	}
	// While it waits only a program keeps a long command.
	command, held := lease.ShortCommand(q.Command, lease.MaxKept), lease.OriginRun
	var program *launch.Program
	if q.Detach != nil {
		held, p = lease.OriginDetached, cgroup.Process{}
		if program, err = programOf(q, c.Caller); err != nil {
			return err
		}
	} else {
		c.Keep(0)
	}
	return ls.admit(c, lease.Request{
		Tenant:  q.Tenant,
		Grant:   q.Grant,
		Kind:    q.Kind,
		Member:  c.Caller.Tenants,
		Admin:   c.Caller.Admin,
		By:      ls.Identities.RequesterOf(c.Caller),
		User:    c.Caller.Name,
		UID:     c.Caller.UID,
		Command: command,
		Wait:    (*time.Duration)(q.Wait),
		Origin:  held,
		Key:     q.Key,
		GPUs:    q.GPUs,
		MaxTime: q.MaxTime,
	}, lease.Process(p), program, c.Caller.Name+" started "+server.FirstWord(command))
}

// admit places a request and isolates the process; with a program it starts that instead. It answers with JSON lines;
// the last one has the outcome. started is the text of the event.
func (ls *Leases) admit(c *server.Call, r lease.Request, p lease.Process, program *launch.Program, started string) error {
	c.Note.Tenant, c.Note.Text = r.Tenant, started
	if r.Origin != lease.OriginAttached {
		c.Note.Command = strings.Join(r.Command, " ")
	}
	refuse := func(g *api.LeaseGrant) *api.LeaseGrant {
		c.Note.Refused = g.Error
		return g
	}
	ticket, err := ls.Table.Submit(r)
	if err != nil {
		return err
	}
	if program != nil {
		ls.Detached.pending.put(ticket.ID(), program)
		defer ls.Detached.pending.take(ticket.ID())
	}
	c.W.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(c.W)
	line := func(g *api.LeaseGrant) {
		server.StartPart(c.W)
		_ = out.Encode(g) // The caller disconnected: the context ends, and with it the wait.
		_ = http.NewResponseController(c.W).Flush()
	}
	var placed lease.Update
	var l lease.Lease
	var result lease.IsolationResult
	for err = lease.ErrQueuedAgain; errors.Is(err, lease.ErrQueuedAgain); {
		placed, err = ticket.Await(c.Ctx(), func(l api.Lease) { line(&api.LeaseGrant{Lease: &l}) })
		if err != nil && ls.Tasks.Stopping() {
			panic(http.ErrAbortHandler) // The daemon ends and the caller repeats the request: after a refusal it would not.
		}
		if err == nil && r.Origin == lease.OriginAttached {
			if err = ls.mayAttach(c.Now()); err != nil {
				ticket.Cancel()
			}
		}
		if err != nil {
			line(refuse(&api.LeaseGrant{Error: ls.leaseError(err)}))
			return nil
		}
		l, result, err = ls.start(c.Ctx(), ticket.ID(), p)
	}
	if err != nil {
		ticket.Cancel()
		line(refuse(ls.startError(err)))
		return nil
	}
	ls.WatchLease(l.ID)
	ls.Events.Publish(l.Event("lease.started", started))
	wire := l.Wire()
	c.Note.Lease, c.Note.Tenant, c.Note.GPU = l.ID, wire.Tenant, strings.Join(wire.GPUs, " ")
	line(&api.LeaseGrant{
		Lease:       &wire,
		Environment: result.Environment,
		Unset:       result.Unset,
		Selected:    placed.Selected,
		Warnings:    result.Warnings,
	})
	return nil
}

// start isolates the process of a lease that is placed. It does not depend on the caller's connection.
func (ls *Leases) start(ctx context.Context, id string, p lease.Process) (lease.Lease, lease.IsolationResult, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stop.IsolationTimeout)
	defer cancel()
	return ls.Table.Start(ctx, id, p)
}

// leaseError returns an error as it is sent in the stream.
func (ls *Leases) leaseError(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	ls.Log.Warn("a lease was not started", "error", err)
	return &api.Error{Kind: api.KindUnavailable, Message: err.Error(), Hint: "see the journal of gpushared"}
}

// startError returns why a lease that was placed was not started; its command may be the reason.
func (ls *Leases) startError(err error) *api.LeaseGrant {
	if f, ok := errors.AsType[*launch.Failure](err); ok {
		return &api.LeaseGrant{Error: &api.Error{Kind: api.KindInvalid, Message: f.Message, Hint: f.Hint}, ExitCode: f.Code}
	}
	return &api.LeaseGrant{Error: ls.leaseError(err)}
}

// Isolation implements lease.Isolation: it creates the scope of a lease and reports which restrictions are active.
type Isolation struct {
	Leases *Leases
	// MayStart returns why no lease of a tenant starts now, other than leases in place; nil: every one starts.
	MayStart func(tenant string) error
	// Vacant returns why a lease may not have its place alone: a process of no lease uses it.
	Vacant func(ctx context.Context, l *lease.Lease) error
}

// Isolate moves the process into a scope of its own with exactly the devices of its lease.
func (w Isolation) Isolate(ctx context.Context, l lease.Lease, p lease.Process) (lease.IsolationResult, error) {
	d := w.Leases
	if l.InPlace() {
		return d.isolateInPlace(ctx, &l, p)
	}
	if w.MayStart != nil {
		if err := w.MayStart(l.Terms.Tenant); err != nil {
			return lease.IsolationResult{}, err
		}
	}
	if w.Vacant != nil {
		if err := w.Vacant(ctx, &l); err != nil {
			return lease.IsolationResult{}, err
		}
	}
	node, want := d.Observer.Last(), d.State.Desired()
	rules, missing, err := d.Policy.DeviceRules(node, &l)
	if err != nil {
		return lease.IsolationResult{}, err
	}
	if want.Enforcing() {
		if err := d.Policy.CheckNodes(ctx, &l, rules); err != nil {
			return lease.IsolationResult{}, err
		}
	}
	result := lease.IsolationResult{Warnings: missing}
	result.Environment, result.Unset, err = d.Policy.Environment(ctx, &l)
	if err != nil {
		return lease.IsolationResult{}, err
	}
	if err := d.Memory.Prepare(ctx, &l); err != nil {
		return lease.IsolationResult{}, err
	}
	port := d.Port
	if !want.Enforcing() {
		port = cgroup.Port(d.Follow)
	}
	info := port.Info()
	scope := scopeOf(&l, cgroup.Process(p), rules)
	if want.StrictNUMA(l.Terms.Tenant) {
		var why string
		if scope.MemoryNodes, why = d.Policy.MemoryNodes(node, &l); why != "" {
			result.Warnings = append(result.Warnings, why)
		}
	}
	var state cgroup.ScopeState
	if program := d.Detached.pending.take(l.ID); program != nil {
		state, err = d.startProgram(ctx, &l, scope, program, &result, want.Enforcing())
	} else {
		state, err = d.startScope(ctx, &l, port, scope, want.Enforcing())
	}
	if err != nil {
		return lease.IsolationResult{}, err
	}
	result.Status = isolationStatus(info, state)
	d.Policy.Scopes.Set(l.ID, rules)
	if state.MemoryNodes != scope.MemoryNodes {
		missing := fmt.Sprintf("cpu.numa: strict: memory is not bound to NUMA node %s", scope.MemoryNodes)
		if !slices.Contains(info.Limits, "cpuset") {
			missing += ": no cpuset limits on " + info.Adapter
		}
		result.Status.NotEnforced = append(result.Status.NotEnforced, missing)
	}
	if !want.Enforcing() {
		result.Warnings = append(
			result.Warnings, "the node only observes (enforce: observe): the command is not isolated, and no quota is enforced",
		)
		result.Status.NotEnforced = append(result.Status.NotEnforced, "everything: the spec says enforce: observe")
	}
	return result, nil
}

// startScope moves a process into its scope. It is recorded before, so that no process is inside that is not recorded.
func (ls *Leases) startScope(
	ctx context.Context, l *lease.Lease, port cgroup.Port, s cgroup.Scope, isolated bool,
) (state cgroup.ScopeState, err error) {
	if isolated {
		var undo func() error
		if undo, err = ls.Escapes.Record(l.ID, s.Process.PID); err != nil {
			return cgroup.ScopeState{}, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, undo())
			}
		}()
	}
	if state, err = port.StartScope(ctx, s); err == nil {
		err = ls.Memory.Begin(ctx, l, state.Path)
	}
	return state, err
}

// RemoveIsolation kills what is left in the scope. Processes in place continue as before their lease.
func (w Isolation) RemoveIsolation(ctx context.Context, l lease.Lease) error {
	w.Leases.Memory.End(ctx, &l)
	if l.InPlace() {
		w.Leases.Stopper.Ended(&l)
		w.Leases.recordExit(ctx, &l)
		w.Leases.releaseInPlace(l.ID)
		if err := w.Leases.Policy.SyncLoginFilters(nil, l.ID); err != nil {
			w.Leases.Log.Warn("cannot revoke a GPU from a login", "lease", l.ID, "error", err) // The converge loop tries again.
		}
		return nil
	}
	// An interrupted start is not recorded: both ports are called; a port without the scope does nothing.
	for _, port := range []cgroup.Port{w.Leases.Port, w.Leases.Follow} {
		if err := w.Leases.Stopper.KillScope(ctx, port, &l); err != nil {
			return err
		}
	}
	w.Leases.Stopper.Ended(&l)
	if l.Origin == lease.OriginDetached {
		w.Leases.recordResult(ctx, l.ID)
	}
	w.Leases.recordExit(ctx, &l)
	return nil
}

func scopeOf(l *lease.Lease, p cgroup.Process, rules []cgroup.DeviceRule) cgroup.Scope {
	return cgroup.Scope{
		ID: l.ID, Slice: cgroup.SliceName{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}, Process: p,
		Description: "gpushare lease " + l.ID, Closed: true, Devices: rules, StopTimeout: stop.StopGrace, Cgroup: l.Cgroup,
	}
}

// isolationStatus returns the restrictions that are active and those that are missing.
func isolationStatus(info cgroup.Info, s cgroup.ScopeState) api.IsolationStatus {
	w := api.IsolationStatus{Cgroup: s.Path, Unit: s.Unit, Devices: info.Devices, Freeze: info.Freeze, MemoryNodes: s.MemoryNodes}
	if !info.Devices {
		w.DevicesReason = devicepolicy.WhyNoDeviceRules(info)
		w.NotEnforced = append(w.NotEnforced, "device rules: "+w.DevicesReason)
	}
	if !info.Freeze {
		w.NotEnforced = append(w.NotEnforced, "time shares: nothing can be frozen ("+info.Detail+")")
	}
	w.NotEnforced = append(w.NotEnforced, missingLimits(info)...)
	return w
}

// missingLimits names the limits that are not enforced here.
func missingLimits(info cgroup.Info) []string {
	var out []string
	for _, name := range cgroup.LimitNames() {
		if !slices.Contains(info.Limits, name) {
			out = append(out, name+" limits: not on "+info.Adapter)
		}
	}
	return out
}

// Watchers observe the ends of leases and of their commands.
type Watchers struct {
	Exits exitListener // nil: how commands end that users started is not known

	mu      locks.Mutex[locks.Watchers] // guards what follows
	Watched map[string]bool             // leases with a goroutine that waits until they are empty

	unknown unknownScopes
}

// WatchLease ends the lease when its last process has exited. There is one watcher for each lease.
func (ls *Leases) WatchLease(id string) {
	ls.Watchers.mu.Lock()
	defer ls.Watchers.mu.Unlock()
	if ls.Watchers.Watched[id] {
		return
	}
	ls.Watchers.Watched[id] = true
	if l, ok := ls.Table.Get(id); ok {
		ls.Escapes.Note(&l)
		ls.followExit(&l)
	}
	ls.Tasks.Go(func() {
		defer func() {
			ls.Watchers.mu.Lock()
			defer ls.Watchers.mu.Unlock()
			delete(ls.Watchers.Watched, id)
		}()
		ls.watchUntilEmpty(ls.Tasks.Context(), id)
	})
}

func (ls *Leases) watchUntilEmpty(ctx context.Context, id string) {
	l, ok := ls.Table.Get(id)
	if !ok {
		return
	}
	err := ls.Attribution.PortOf(&l).WaitEmpty(ctx, id)
	killed := errors.Is(err, cgroup.ErrOutOfMemory)
	if err != nil && !killed && !errors.Is(err, cgroup.ErrNotFound) {
		if ctx.Err() != nil {
			return // The daemon ends: leases outlive it.
		}
		ls.Log.Error("cannot watch a lease", "lease", id, "error", err)
	}
	why := "the last process ended"
	if now, still := ls.Table.Get(id); l.InPlace() && (!still || now.Reason != "") {
		why = "it was released or stopped"
		if still {
			why = now.Reason
		}
	}
	reason := "its last process ended"
	if killed {
		reason = cgroup.ErrOutOfMemory.Error()
	}
	// The lease is ended even while the daemon stops: this has a timeout of its own.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stop.IsolationTimeout)
	defer cancel()
	for ctx.Err() == nil {
		err := ls.Table.Ended(end, id, reason)
		if err == nil {
			break
		}
		ls.Log.Error("cannot end a lease", "lease", id, "error", err)
		if !loop.Pause(ctx, time.Second) {
			return
		}
		end, cancel = context.WithTimeout(context.WithoutCancel(ctx), stop.IsolationTimeout)
		defer cancel()
	}
	switch {
	case killed:
		why = reason
	case l.Origin == lease.OriginDetached:
		why = ls.endText(id, "the last process ended")
	case ls.hasOwnExit(&l):
		why = ls.endText(id, why) // A lease that was released has no exit: its process runs.
	}
	ls.Events.Publish(l.Event("lease.ended", why))
	ls.Wake()
}

// DeleteLease stops a lease gracefully (SIGTERM, then SIGKILL) and answers when it has ended.
func (ls *Leases) DeleteLease(c *server.Call) error {
	id := c.R.PathValue("id")
	l, ok := ls.Table.Get(id)
	if !ok && c.Caller.Admin && ls.isUnknown(id) {
		if err := c.AsAdmin("stop a lease"); err != nil {
			return err
		}
		if err := ls.Stopper.KillUnknown(c.Ctx(), ls.Port, id); err != nil {
			return err
		}
		return c.Reply(http.StatusOK, map[string]string{"stopped": id})
	}
	if !ok || !(c.Caller.Admin || c.Caller.IsMember(l.Terms.Tenant) || c.Caller.IsUserOf(&l)) {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no lease %q that you may stop", id),
			Hint:    "see 'gpushare lease list'",
		}
	}
	c.Note.Tenant, c.Note.Text = l.Terms.Tenant, "a lease of "+l.User
	if !c.Caller.MayEnd(&l) {
		return &api.Error{
			Kind:    api.KindDenied,
			Message: fmt.Sprintf("%s may not stop lease %s of user %s", c.Caller.Name, id, l.User),
			Hint:    "its user or an administrator may",
		}
	}
	if !c.Caller.IsUserOf(&l) {
		if err := c.AsAdmin("stop lease " + id); err != nil {
			return err
		}
	}
	if err := ls.StopLease(c.Ctx(), &l, "stopped by "+c.Caller.Name, stop.StopGrace); err != nil {
		return err
	}
	return c.Reply(http.StatusOK, map[string]string{"stopped": id})
}

// StopLease stops the processes of a lease and ends the lease. It returns when the lease has ended.
func (ls *Leases) StopLease(ctx context.Context, l *lease.Lease, reason string, grace time.Duration) error {
	if ls.Table.DropContainer(l.ID, reason, time.Time{}) {
		return nil // It waited for its container, and has no process.
	}
	if err := ls.Table.Ending(l.ID, reason); err != nil {
		return err
	}
	notify := func(ctx context.Context) {
		ls.Table.Notice(l.ID, lease.Notice{Kind: "lease.stopping", Text: "it is being stopped: " + reason})
		ls.awaitDelivery(ctx)
	}
	if err := ls.Stopper.Lease(ctx, l, grace, notify); err != nil {
		return err
	}
	if err := ls.Table.Ended(ctx, l.ID, reason); err != nil {
		return err
	}
	return ls.Stopper.AwaitEnded(ctx, l.ID)
}

// GetEnv answers with the environment of the lease that the caller runs in, or with what podman needs for a container in it.
func (ls *Leases) GetEnv(c *server.Call) error {
	podman := c.Flag("podman")
	p := c.Caller.Process
	id, ok := ls.Attribution.LeaseOf(p.PID)
	// The pid was read when the caller connected. If another process has it now, its lease is not the caller's.
	if !ok || !procfs.Alive(p.PID, p.Start) {
		hint := "start one with 'gpushare run -- $SHELL'"
		if podman {
			hint = "start the container in one: " + api.RootlessContainer("", "")
		}
		return &api.Error{Kind: api.KindNotFound, Message: "this process runs in no lease", Hint: hint}
	}
	l, ok := ls.Table.Get(id)
	if !ok || !(c.Caller.Admin || c.Caller.IsMember(l.Terms.Tenant) || c.Caller.UID == l.UID) {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: "the lease of this process has ended, or belongs to a tenant that you are not a member of",
		}
	}
	env, unset, err := ls.Policy.Environment(c.Ctx(), &l)
	if err != nil {
		return err
	}
	out := api.Environment{Lease: id, Environment: env, Unset: unset}
	if podman {
		if out.Podman, err = ls.Policy.PodmanOptions(c.Ctx(), &l); err != nil {
			return fmt.Errorf("cannot describe a container of lease %s: %w", id, err)
		}
	}
	return c.Reply(http.StatusOK, out)
}

// SaveLeases writes the table, to be kept until the next boot, before a lease is reported.
func (ls *Leases) SaveLeases(_ context.Context, state []byte) error {
	ls.saveEnded()
	return ls.RunDir.Write("leases.json", state)
}

// Restore recovers the leases of the previous run, ends those whose processes have exited, and finds those without a record.
func (ls *Leases) Restore(ctx context.Context) error {
	return errors.Join(ls.restoreTable(ctx), ls.findUnknown(ctx))
}

func (ls *Leases) restoreTable(ctx context.Context) error {
	if err := ls.restoreEnded(); err != nil {
		ls.Log.Warn("the ended leases of the previous run are lost", "error", err)
	}
	b, damage, err := ls.RunDir.Read("leases.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err = cmp.Or(err, damage.Err()); err != nil {
		return err
	}
	if damage != nil {
		ls.Conditions.Set(
			"state", "leases", "the newest record of the leases could not be read, the one before it is used: "+damage.Reason,
			"see 'gpushare lease list'; a lease that is missing there is reported by another condition",
		)
		ls.Log.Error("the record of the leases was damaged", "message_id", report.MessageLeasesDamaged, "reason", damage.Reason)
	}
	if err := ls.Table.Restore(b); err != nil {
		return err
	}
	var ended []lease.Lease
	for _, l := range ls.Table.Live() {
		found, err := ls.recoverLease(ctx, &l)
		if err != nil {
			return err // The daemon ends: leases outlive it.
		}
		if found {
			ls.Table.Recovered(l.ID, l.Process)
			ls.WatchLease(l.ID)
			continue
		}
		ended = append(ended, l)
	}
	ls.finishPrograms(ctx, ended)
	for _, l := range ended {
		ls.Escapes.Note(&l) // They may have escaped instead.
		end, cancel := context.WithTimeout(ctx, stop.IsolationTimeout)
		if err := ls.Table.Ended(end, l.ID, "its processes exited while the daemon did not run"); err != nil {
			ls.Log.Error("cannot end a lease", "lease", l.ID, "error", err)
		}
		cancel()
	}
	ls.pruneOutputs()
	ls.awaitSavedTickets()
	return nil
}

// finishPrograms ends what still runs for detached commands of leases that have ended meanwhile or before. What runs for a lease whose
// record was lost is not ended: the lease may run.
func (ls *Leases) finishPrograms(ctx context.Context, ended []lease.Lease) {
	ctx, cancel := context.WithTimeout(ctx, resultTimeout)
	defer cancel()
	ls.Detached.Programs.Finish(ctx, func(id string) bool {
		if slices.ContainsFunc(ended, func(l lease.Lease) bool { return l.ID == id }) {
			return true
		}
		_, live := ls.Table.Get(id)
		_, known := ls.Ended.get(id)
		return known && !live
	})
}

// recoverRetryInterval is the pause between two attempts to recover a lease.
const recoverRetryInterval = time.Second

// recoverLease finds one lease's processes after a restart. While the service manager does not answer it tries again: a
// lease is not ended if its state is unknown.
func (ls *Leases) recoverLease(ctx context.Context, l *lease.Lease) (bool, error) {
	for {
		try, cancel := context.WithTimeout(ctx, stop.IsolationTimeout)
		if l.Origin == lease.OriginDetached {
			ls.findProgram(try, l)
		}
		found, err := ls.Recover(try, l)
		cancel()
		if err == nil {
			return found, nil
		}
		ls.Log.Warn("cannot recover a lease", "lease", l.ID, "error", err)
		if !loop.Pause(ctx, recoverRetryInterval) {
			return false, ctx.Err()
		}
	}
}

// Recover finds one lease's processes after a restart, and thaws them: the scheduler starts again.
func (ls *Leases) Recover(ctx context.Context, l *lease.Lease) (bool, error) {
	if l.InPlace() {
		return ls.recoverInPlace(ctx, l), nil
	}
	for _, port := range []cgroup.Port{ls.Port, ls.Follow} {
		if port == cgroup.Port(ls.Follow) && l.Isolation.Cgroup != "" {
			break // It was isolated: a process of it outside its scope has escaped.
		}
		state, err := port.Recover(ctx, scopeOf(l, cgroup.Process(l.Process), nil))
		if errors.Is(err, cgroup.ErrNotFound) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", port.Info().Adapter, err)
		}
		if err := port.Thaw(ctx, l.ID); err != nil && !errors.Is(err, cgroup.ErrNotSupported) {
			ls.Log.Error("cannot thaw a recovered lease", "lease", l.ID, "error", err)
		}
		ls.Table.SetIsolation(l.ID, isolationStatus(port.Info(), state))
		return true, nil
	}
	return false, nil
}
