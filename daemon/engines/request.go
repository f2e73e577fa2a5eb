package engines

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/lease"
)

// mostGPUs is how many GPUs a request may name: no node has more.
const mostGPUs = 128

func invalid(key, why, hint string) error {
	return &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot attach %q: %s", key, why), Hint: hint}
}

// check refuses what no lease can have.
func check(q *api.EngineRequest) error {
	const form = "the key is ENGINE:NAME, as in slurm:CLUSTER:JOB:RESTART"
	if why := api.EngineKeyProblem(q.Key); why != "" {
		return invalid(q.Key, "its key: "+why, form)
	}
	if why := api.EngineAccountProblem(q.Account); why != "" {
		return invalid(q.Key, "its account: "+why, "")
	}
	switch {
	case len(q.GPUs) > mostGPUs:
		return invalid(q.Key, fmt.Sprintf("more than %d GPUs are named", mostGPUs), "")
	case q.GPUMemory != nil && *q.GPUMemory == 0:
		return invalid(q.Key, "its gpu_memory is 0", "leave it out: then it has the memory of the grant together with its other leases")
	case q.Share != nil && *q.Share <= 0:
		return invalid(q.Key, "its share is 0", "leave it out: then it has a part of the share of the grant")
	case q.MaxTime != nil && *q.MaxTime <= 0:
		return invalid(q.Key, "its max_time is 0", "leave it out: then the lease has the time of its grant")
	case q.BindTimeout != nil && (*q.BindTimeout <= 0 || *q.BindTimeout > api.MostBindTimeout):
		return invalid(q.Key, fmt.Sprintf("its bind_timeout is not between 0 and %s", api.MostBindTimeout), "")
	case q.BindTimeout != nil && q.Keep:
		return invalid(q.Key, "it has both keep and bind_timeout", "a lease with keep waits for its processes until it is released")
	}
	return nil
}

// termsOf are what a request names, in one form: GPUs by their UUIDs.
func (en *Engines) termsOf(q *api.EngineRequest) lease.EngineTerms {
	t := lease.EngineTerms{
		Tenant:   q.Tenant,
		Grant:    q.Grant,
		Kind:     q.Kind,
		User:     q.User,
		Account:  q.Account,
		Instance: q.Instance,
		MaxTime:  q.MaxTime,
		Kept:     q.Keep,
	}
	if q.GPUMemory != nil {
		t.Own.Memory = uint64(*q.GPUMemory)
	}
	if q.Share != nil {
		t.Own.Share = float64(*q.Share)
	}
	node := en.Observer.Last()
	for _, name := range q.GPUs {
		for i := range node.GPUs {
			if d := &node.GPUs[i].Identity; name == fmt.Sprint(d.Index) {
				name = string(d.UUID)
				break
			}
		}
		t.GPUs = append(t.GPUs, name)
	}
	t.GPUsWritten = slices.Clone(q.GPUs)
	slices.Sort(t.GPUs)
	slices.Sort(t.GPUsWritten)
	return t
}

// userOf is who the lease is for.
func (en *Engines) userOf(ctx context.Context, c *server.Call, q *api.EngineRequest) (uid int, name string, err error) {
	if q.User == "" {
		return c.Caller.UID, c.Caller.Name, nil
	}
	return en.Identities.UserNamed(ctx, q.User)
}

// request is a request for a new lease.
func (en *Engines) request(ctx context.Context, c *server.Call, q *api.EngineRequest, terms *lease.EngineTerms) (lease.Request, error) {
	uid, user, err := en.userOf(ctx, c, q)
	if err != nil {
		return lease.Request{}, err
	}
	limit := api.DefaultBindTimeout
	switch {
	case q.Keep:
		limit = api.MostBindTimeout // for a version that knows no kept lease, and would end it at once
	case q.BindTimeout != nil:
		limit = *q.BindTimeout
	}
	engine := &lease.Engine{
		Key: q.Key, Account: q.Account, Terms: *terms, Kept: q.Keep, BindBy: en.Now().Add(time.Duration(limit)),
	}
	return lease.Request{
		Tenant:     q.Tenant,
		Grant:      q.Grant,
		Kind:       q.Kind,
		Member:     c.Caller.Tenants,
		Admin:      true,
		By:         en.Identities.EngineOf(c.Caller),
		User:       user,
		UID:        uid,
		Command:    lease.ShortCommand([]string{cmp.Or(q.Name, q.Key)}, lease.MaxKept),
		Origin:     lease.OriginAttached,
		AttachedBy: c.Caller.UID,
		Engine:     engine,
		GPUs:       terms.GPUs,
		Instance:   q.Instance,
		Own:        terms.Own,
		MaxTime:    q.MaxTime,
	}, nil
}

// difference says what a second request names and the first did not; empty: nothing. The cgroup is compared by the caller.
func difference(first, second *lease.EngineTerms) string {
	text := func(name, was, is string) string {
		if is == "" || is == was {
			return ""
		}
		return fmt.Sprintf("its %s is %s, and the lease was requested with %s", name, is, cmp.Or(was, "none"))
	}
	bytes := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return api.Bytes(n).String()
	}
	share := func(f float64) string {
		if f == 0 {
			return ""
		}
		return api.Percent(f).String()
	}
	limit := func(d *api.Duration) string {
		if d == nil {
			return ""
		}
		return d.String()
	}
	keep := func(was, is bool) string {
		if !is || was {
			return ""
		}
		return "it is to be kept until it is released, and the lease was requested without"
	}
	gpus := ""
	if len(second.GPUs) > 0 && !sameGPUs(first, second) {
		gpus = fmt.Sprintf("its GPUs are %v, and the lease was requested with %v", second.GPUs, first.GPUs)
	}
	return cmp.Or(
		text("tenant", first.Tenant, second.Tenant),
		text("grant", first.Grant, second.Grant),
		text("kind", first.Kind, second.Kind),
		text("user", first.User, second.User),
		text("account", first.Account, second.Account),
		gpus,
		text("instance", first.Instance, second.Instance),
		text("gpu_memory", bytes(first.Own.Memory), bytes(second.Own.Memory)),
		text("share", share(first.Own.Share), share(second.Own.Share)),
		text("max_time", limit(first.MaxTime), limit(second.MaxTime)),
		keep(first.Kept, second.Kept),
	)
}

// sameGPUs reports whether two requests name the same GPUs. What an index was may not be known to one of them: the same words are the same.
func sameGPUs(first, second *lease.EngineTerms) bool {
	return slices.Equal(first.GPUs, second.GPUs) || len(first.GPUsWritten) > 0 && slices.Equal(first.GPUsWritten, second.GPUsWritten)
}
