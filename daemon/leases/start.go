package leases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/launch"
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
		if err == nil {
			if _, err = server.GoOn(c.Ctx()); err != nil {
				ticket.Cancel()
			}
		}
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
	if wire.GPUMemory != nil && wire.GPUMemory.Limit > 0 {
		ls.Memory.Describe(&l, wire.GPUMemory)
	}
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
		if err := d.Policy.CheckNodes(ctx, node, &l, rules); err != nil {
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
