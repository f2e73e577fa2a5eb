package engines

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
	"github.com/gpushare/gpushare/lease"
)

// PostLease registers a keyed lease, or answers with the lease that the key has. It is answered when the lease is recorded: with
// processes if they are there, else it is bound later.
func (en *Engines) PostLease(c *server.Call) error {
	q, err := server.Decode[api.EngineRequest](c)
	if err != nil {
		return err
	}
	if err := check(q); err != nil {
		return err
	}
	c.Keep(0)
	c.Note.Tenant, c.Note.Text = q.Tenant, q.Key
	unlock, err := en.keys.lock(c.Ctx(), q.Key)
	if err != nil {
		return err
	}
	defer unlock()
	terms := en.termsOf(q)
	l, again := en.Table.Keyed(q.Key)
	cg, p, err := en.cgroupOf(c, q, &l, again)
	if err != nil {
		return err
	}
	var former []lease.Lease
	if cg != "" && !(again && slices.Contains(l.Cgroups(), cg)) {
		var end func()
		if end, former, err = en.named(q.Key, cg); err != nil {
			return err
		}
		defer end()
	}
	var r lease.Request
	if again {
		err = en.sameAs(&l, q, &terms)
	} else {
		r, err = en.newRequest(c, q, &terms)
	}
	if err != nil {
		return err
	}
	ctx, err := server.GoOn(c.Ctx())
	if err != nil {
		return err
	}
	en.dropFormer(ctx, former, q.Key)
	if !again {
		if l, err = en.register(ctx, &r); err != nil {
			return err
		}
	}
	return en.answer(ctx, c, l, again, cg, p)
}

// cgroupOf checks the cgroup that a request names, and finds a process in it; empty: it names none, or that of a lease that needs none.
func (en *Engines) cgroupOf(c *server.Call, q *api.EngineRequest, l *lease.Lease, again bool) (cg string, p *cgroup.Process, err error) {
	switch {
	case q.Cgroup == "":
		return "", nil, nil
	case !again:
		uid, _, err := en.userOf(c.Ctx(), c, q)
		if err != nil {
			return "", nil, err
		}
		return en.Cgroups.EngineCgroup(q.Cgroup, uid, c.Caller.UID)
	}
	if err := en.mayName(c.Caller, l, q.Cgroup); err != nil {
		return "", nil, err
	}
	switch {
	case l.AwaitsCgroup():
		return en.Cgroups.EngineCgroup(q.Cgroup, l.UID, c.Caller.UID)
	case l.Kept():
		cg, err = en.furtherCgroup(l, q.Cgroup, c.Caller.UID)
		return cg, nil, err
	}
	return "", nil, nil
}

// mayName refuses a cgroup of another engine than root for a lease of root, which may have every process in its cgroups stopped.
func (en *Engines) mayName(caller *server.Caller, l *lease.Lease, name string) error {
	if stop.RootOrSelf(caller.UID) || !stop.RootOrSelf(l.AttachedBy) {
		return nil
	}
	if cg, err := en.Cgroups.CleanCgroup(name); err != nil || slices.Contains(l.Cgroups(), cg) {
		return err
	}
	return &api.Error{
		Kind:    api.KindDenied,
		Message: fmt.Sprintf("cannot give lease %s cgroup %s: root requested the lease, and %s is not root", l.ID, name, caller.Name),
		Hint:    "root names its cgroups; a lease with another key is of " + caller.Name,
	}
}

// newRequest is the request for the lease of a key that never had one.
func (en *Engines) newRequest(c *server.Call, q *api.EngineRequest, terms *lease.EngineTerms) (lease.Request, error) {
	if k, ended := en.Table.KeyEnded(q.Key); ended {
		return lease.Request{}, &api.Error{
			Kind: api.KindConflict,
			Message: fmt.Sprintf(
				"cannot attach %s: its lease %s ended at %s: %s", q.Key, k.Lease, k.At.Local().Format(time.DateTime), k.Reason,
			),
			Hint: "a job that runs again has another key, as by its restart count; 'gpushare lease show --key " + q.Key + "' shows the lease",
		}
	}
	return en.request(c.Ctx(), c, q, terms)
}

// register gives a key its lease.
func (en *Engines) register(ctx context.Context, r *lease.Request) (lease.Lease, error) {
	key := r.Engine.Key
	ticket, err := en.Table.Submit(*r)
	if err != nil {
		return lease.Lease{}, withoutWait(err, r)
	}
	if _, err := ticket.Await(ctx, nil); err != nil {
		return lease.Lease{}, withoutWait(err, r)
	}
	l, ok := en.Table.Get(ticket.ID())
	if !ok {
		return lease.Lease{}, &api.Error{Kind: api.KindUnavailable, Message: "cannot attach " + key + ": its lease was ended at once"}
	}
	en.Events.Publish(l.Event("lease.placed", key+" has its place"))
	return l, nil
}

// withoutWait gives the refusal of a place the hint that helps: the engine cannot wait for it.
func withoutWait(err error, r *lease.Request) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Kind != api.KindUnavailable {
		return err
	}
	out := *e
	out.Hint = "a keyed lease does not wait: 'gpushare lease list' shows which leases are there"
	if len(r.GPUs) > 0 || r.Instance != "" {
		out.Hint = "the engine chose this place, and gpushare gives no other: 'gpushare status' shows what is there"
	}
	return &out
}

// sameAs refuses a second request that names other than the first.
func (en *Engines) sameAs(l *lease.Lease, q *api.EngineRequest, terms *lease.EngineTerms) error {
	why := difference(&l.Engine.Terms, terms)
	if why == "" && q.Cgroup != "" && l.Cgroup != "" && !l.Kept() {
		cg, err := en.Cgroups.CleanCgroup(q.Cgroup)
		if err != nil {
			return err
		}
		if cg != l.Cgroup {
			why = fmt.Sprintf("its cgroup is %s, and the lease has %s", cg, l.Cgroup)
		}
	}
	if why == "" {
		return nil
	}
	return &api.Error{
		Kind:    api.KindConflict,
		Message: fmt.Sprintf("cannot attach %s: it has lease %s already: %s", q.Key, l.ID, why),
		Hint:    "'gpushare lease release --key " + q.Key + "' ends that lease",
	}
}

// answer binds the lease if it can be bound, and answers with it. again: an earlier request was answered with it.
func (en *Engines) answer(ctx context.Context, c *server.Call, l lease.Lease, again bool, cg string, p *cgroup.Process) error {
	var result lease.IsolationResult
	var err error
	if cg != "" && l.Kept() && !slices.Contains(l.Cgroups(), cg) {
		if l, err = en.addCgroup(ctx, &l, cg); err != nil {
			return err
		}
	}
	if l.AwaitsCgroup() {
		if cg != "" && !en.Table.NameCgroup(l.ID, cg) {
			return &api.Error{
				Kind:    api.KindConflict,
				Message: fmt.Sprintf("cannot bind %s to cgroup %s: lease %s is bound or ended", l.Engine.Key, cg, l.ID),
				Hint:    "'gpushare lease show --key " + l.Engine.Key + "' shows it",
			}
		}
		if cg != "" && p != nil {
			id := l.ID
			if l, result, err = en.start(ctx, id, *p, again); err != nil {
				en.await(id) // It is kept, or there is no such lease any more.
			}
		} else {
			en.await(l.ID)
			err = en.record(ctx)
		}
		if err != nil {
			return err
		}
		if now, ok := en.Table.Get(l.ID); ok {
			l = now
		}
	} else if l.Kept() {
		// The request that gave it the cgroup may have failed in this alone.
		if err := en.record(ctx); err != nil {
			return err
		}
	}
	grant := api.LeaseGrant{Warnings: result.Warnings}
	if grant.Environment, grant.Unset, err = en.Policy.Environment(ctx, &l); err != nil {
		return err
	}
	wire := l.Wire()
	grant.Lease = &wire
	c.Note.Lease, c.Note.Tenant, c.Note.GPU = l.ID, wire.Tenant, strings.Join(wire.GPUs, " ")
	return c.Reply(http.StatusOK, &grant)
}

// record writes what is answered. If that fails the engine asks again, with the same key.
func (en *Engines) record(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	return en.Table.Record(ctx)
}

// GetLease answers with the lease of a key, also of one that has ended while the key is kept.
func (en *Engines) GetLease(c *server.Call) error {
	key := c.R.PathValue("key")
	if l, ok := en.Table.Keyed(key); ok {
		return c.Reply(http.StatusOK, l.Wire())
	}
	k, ok := en.Table.KeyEnded(key)
	if !ok {
		return unknown(key)
	}
	l, kept := en.Leases.EndedLease(k.Lease)
	if !kept || l.Engine == nil || l.Engine.Key != key {
		l = api.Lease{
			ID: k.Lease, State: api.LeaseEnded, Command: k.Command, Ended: &k.At, Reason: k.Reason, Engine: &api.LeaseEngine{Key: key},
		}
	}
	return c.Reply(http.StatusOK, l)
}

// GetDevice answers with the CDI document of the lease of a key, for a container runtime of the engine.
func (en *Engines) GetDevice(c *server.Call) error {
	key := c.R.PathValue("key")
	l, ok := en.Table.Keyed(key)
	if !ok {
		return unknown(key)
	}
	document, err := en.Policy.DescribeForEngine(c.Ctx(), &l)
	if err != nil {
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot describe the devices of lease %s: %v", l.ID, err),
			Hint:    "'gpushare lease show " + l.ID + "' shows the lease, 'gpushare doctor' the node",
		}
	}
	return c.Reply(http.StatusOK, json.RawMessage(document))
}

func unknown(key string) error {
	return &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("there is no lease with key %q", key),
		Hint:    "see 'gpushare lease list'; the key of a lease that has ended is kept for an hour",
	}
}

// DeleteLease releases the lease of a key. One that has ended is released already: an Epilog may come twice, and late.
func (en *Engines) DeleteLease(c *server.Call) error {
	key := c.R.PathValue("key")
	unlock, err := en.keys.lock(c.Ctx(), key)
	if err != nil {
		return err
	}
	defer unlock()
	c.Note.Text = key
	l, ok := en.Table.Keyed(key)
	if !ok {
		k, ended := en.Table.KeyEnded(key)
		if !ended {
			return unknown(key)
		}
		return c.Reply(http.StatusOK, map[string]string{"released": k.Lease})
	}
	c.Note.Lease, c.Note.Tenant = l.ID, l.Terms.Tenant
	ctx, err := server.GoOn(c.Ctx())
	if err != nil {
		return err
	}
	if err := en.Leases.ReleaseAttached(ctx, &l, "released by "+c.Caller.Name); err != nil {
		return err
	}
	return c.Reply(http.StatusOK, map[string]string{"released": l.ID})
}
