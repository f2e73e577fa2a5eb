package adoption

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/lease"
)

const (
	// containerWait is how long a place is kept free for a container that was announced.
	containerWait = 2 * time.Minute
	// arrivingPasses is in how many passes a container may still have the environment of its runtime, because its program was
	// not executed yet.
	arrivingPasses = 2
)

// PostContainer reserves a place for one container, with a CDI device of its own. Containers that start at the same moment
// have different places then; the device of a grant can only describe one place at a time.
func (a *Adopter) PostContainer(c *server.Call) error {
	q, err := server.Decode[api.ContainerRequest](c)
	if err != nil {
		return err
	}
	cannot := func(kind api.Kind, why, hint string) error {
		return &api.Error{
			Kind:    kind,
			Message: fmt.Sprintf("cannot reserve a place for a container in grant %s of %s: %s", q.Grant, q.Tenant, why),
			Hint:    hint,
		}
	}
	if q.Tenant == "" || q.Grant == "" {
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "cannot reserve a place for a container: the request names no tenant and grant",
			Hint:    "name both, with -t and --grant",
		}
	}
	r := lease.Request{
		Tenant:    q.Tenant,
		Grant:     q.Grant,
		Admin:     true,
		By:        a.Identities.RequesterOf(c.Caller),
		User:      c.Caller.Name,
		UID:       c.Caller.UID,
		Command:   []string{"container"},
		Origin:    lease.OriginContainer,
		Immediate: true,
	}
	if err := a.Table.Allowed(&r); err != nil {
		return err
	}
	if t, ok := a.State.Desired().Tenant(q.Tenant); ok {
		for i := range t.Grants {
			if t.Grants[i].Name == q.Grant && t.Grants[i].Kind() == api.ModeMPS {
				return cannot(
					api.KindInvalid, api.NoCDIForMPS,
					"without root and without CDI it runs inside of a lease: "+api.RootlessContainer(q.Tenant, q.Grant),
				)
			}
		}
	}
	if !a.State.Desired().Enforcing() || !a.Port.Info().Slices {
		return cannot(api.KindUnavailable, "nothing is enforced on this node", "see 'gpushare doctor'")
	}
	ctx, err := server.GoOn(c.Ctx())
	if err != nil {
		return err
	}
	ticket, err := a.Table.Submit(r)
	if err != nil {
		return err
	}
	id := ticket.ID()
	a.Policy.WriteCDI(ctx)
	u := a.Policy.ContainerUse(a.Observer.Last().Slices, cgroup.SliceName(a.Table.SliceOf(lease.Key{Tenant: q.Tenant, Grant: q.Grant})), id)
	if u == nil || !a.Policy.CDI.OffersLease(id) {
		ticket.Cancel()
		return cannot(
			api.KindUnavailable, "its slice or its CDI file could not be written",
			"see 'gpushare status' and 'gpushare doctor', and try again",
		)
	}
	until := time.Now().Add(containerWait)
	u.Lease, u.Until = id, &until
	c.Note.Lease, c.Note.Tenant = id, q.Tenant
	return c.Reply(http.StatusOK, u)
}

// dropLateContainers frees the places of containers that have not come in time.
func (a *Adopter) dropLateContainers(now time.Time) {
	waiting := a.Table.LiveOnly((*lease.Lease).AwaitsContainer)
	for i := range waiting {
		l := &waiting[i]
		if a.Table.DropContainer(l.ID, fmt.Sprintf("no container was started with it within %s", containerWait), now.Add(-containerWait)) {
			a.Events.Publish(
				l.Event("lease.ended", fmt.Sprintf("no container was started with the device of lease %s within %s", l.ID, containerWait)),
			)
		}
	}
}

// arrived is what is known of a container that was found.
type arrived struct {
	lease string // the lease that waited for it
	wait  bool   // its program may not be executed yet: look again
	err   error  // it has the device of a lease that it cannot have
}

// reservedFor finds the lease that a container was started with, by the environment that the CDI device gives.
func (a *Adopter) reservedFor(ctx context.Context, s state.GrantKey, ps []cgroup.Process, passes int) arrived {
	waiting := false
	live := a.Table.Live()
	ids := map[string]bool{}
	for i := range live {
		if l := &live[i]; l.Terms.Tenant == s.Tenant && l.Terms.Spec.Name == s.Grant && l.AwaitsContainer() {
			waiting, ids[l.ID] = true, true
		}
	}
	other := ""
	for _, p := range ps[:min(len(ps), 8)] {
		id := leaseInEnvironment(ctx, p.PID)
		if ids[id] {
			return arrived{lease: id}
		}
		if strings.HasPrefix(id, s.Tenant+"-"+s.Grant+"-") {
			other = id
		}
	}
	switch {
	case (waiting || other != "") && passes < arrivingPasses:
		return arrived{wait: true}
	case other != "":
		return arrived{
			err: &api.Error{
				Kind:    api.KindConflict,
				Message: fmt.Sprintf("it was started with the device of lease %s, which another container has or which has ended", other),
				Hint:    "each container needs a device of its own: 'gpushare env --cdi --reserve'",
			},
		}
	}
	return arrived{}
}

// leaseInEnvironment returns the lease in the environment of a process; empty if there is none.
func leaseInEnvironment(ctx context.Context, pid int) string {
	b, err := procfs.Environment(ctx, pid)
	if err != nil {
		return ""
	}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if id, ok := bytes.CutPrefix(kv, []byte(devicepolicy.LeaseVariable+"=")); ok {
			return string(id)
		}
	}
	return ""
}

// startReserved starts the lease that waited for a container.
func (a *Adopter) startReserved(ctx context.Context, id, cg, unit string, p cgroup.Process) (lease.Lease, error) {
	if !a.Table.ArrivedContainer(id, cg, unit, []string{containerName(cg)}) {
		return lease.Lease{}, &api.Error{
			Kind:    api.KindConflict,
			Message: fmt.Sprintf("lease %s waits for no container", id),
			Hint:    "see 'gpushare lease list'",
		}
	}
	l, _, err := a.Table.Start(ctx, id, lease.Process(p))
	return l, err
}
