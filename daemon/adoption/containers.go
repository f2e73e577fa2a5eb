package adoption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// containers are the cgroups under slices of grants that gpushare did not create.
type containers struct {
	// They are used only by its loop, and have the cgroup as the key.
	refused map[string]string // why it has no lease
	passes  map[string]int    // in how many passes it was found without a lease

	events  cgroup.ChildEvents
	unknown map[string]bool // slices in which the last pass found cgroups that are not gpushare's
	listed  uint64          // how often the children of a slice were listed
}

// containerLoop finds containers that were started under a grant's slice.
func (a *Adopter) containerLoop(ctx context.Context) {
	defer a.containers.events.Close()
	for {
		if !loop.Every(ctx, a.SampleInterval()) {
			return
		}
		if a.State.Desired().Enforcing() && a.Port.Info().Slices {
			a.findContainers(ctx)
		}
	}
}

// findContainers starts a lease for every cgroup under a grant's slice that has processes and is no scope of gpushare.
// The container runs already, so a grant without capacity does not refuse it: a condition reports that it has no lease,
// and the policy for processes without a lease applies.
func (a *Adopter) findContainers(ctx context.Context) {
	h, err := a.Hierarchy()
	if err != nil {
		return
	}
	isOwnScope := a.Port.Abilities().OwnScope
	if isOwnScope == nil {
		return // The adapter cannot tell its own scopes from other cgroups.
	}
	a.dropLateContainers(time.Now())
	refused, passes := map[string]string{}, map[string]int{}
	found := a.foreignCgroups(h, isOwnScope)
	var former []state.FormerSlice
	if len(found) > 0 {
		former = state.FormerSlices(a.State.Desired(), a.Table.Live())
	}
	for _, s := range slices.SortedFunc(maps.Keys(found), compareSlices) {
		for _, cg := range found[s] {
			ps := a.unknownProcesses(h, cg)
			if len(ps) == 0 {
				continue
			}
			passes[cg] = a.containers.passes[cg] + 1
			if err := a.adoptContainer(ctx, state.GrantOfSlice(former, s), cg, ps); err != nil {
				refused[cg] = err.Error()
			}
		}
	}
	changed := !maps.Equal(a.containers.refused, refused)
	a.containers.refused, a.containers.passes = refused, passes
	now := map[string]api.Condition{}
	for cg, why := range refused {
		now[cg] = api.Condition{
			Message: containerName(cg) + " has no lease: " + why,
			Hint:    "it continues to run; what it uses counts for no tenant. Its cgroup is " + cg,
		}
	}
	a.Conditions.Replace("container", now)
	if changed {
		a.Invalidate() // The status shows it now, and not with the next change of something else.
	}
}

// foreignCgroups lists the cgroups below the slices of grants that gpushare did not create. A slice that had none is listed again only
// after the kernel reported a new one in it: a node has hundreds of slices, and most of them never have a container.
func (a *Adopter) foreignCgroups(h cgroup.Hierarchy, isOwnScope func(name string) bool) map[cgroup.SliceName][]string {
	c := &a.containers
	if err := c.events.Begin(); err != nil {
		a.Log.Debug("the slices of grants are listed in each pass", "error", err)
	}
	out, all, unknown := map[cgroup.SliceName][]string{}, map[string]bool{}, map[string]bool{}
	for _, s := range a.Observer.Last().Slices {
		if s.Name.Grant == "" || s.Path == "" {
			continue
		}
		all[s.Path] = true
		if !c.events.Changed(h, s.Path) && !c.unknown[s.Path] {
			continue
		}
		c.listed++
		children, err := h.Children(s.Path)
		if err != nil && !errors.Is(err, cgroup.ErrNotFound) {
			a.Log.Warn("cannot list containers", "slice", s.Name, "error", err)
			unknown[s.Path] = true // It is listed again.
		}
		for _, cg := range children {
			if isOwnScope(path.Base(cg)) || strings.Contains(path.Base(cg), "conmon") {
				continue // The monitor of a container, not the container.
			}
			out[s.Name] = append(out[s.Name], cg)
			unknown[s.Path] = true
		}
	}
	c.events.Retain(h, all)
	c.unknown = unknown
	return out
}

func compareSlices(a, b cgroup.SliceName) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Grant, b.Grant))
}

// unknownProcesses are the processes of a container that has no lease; none if it has one, or has ended.
func (a *Adopter) unknownProcesses(h cgroup.Hierarchy, cg string) []cgroup.Process {
	if _, known := a.Attachments.ScopeAt(cg); known {
		return nil
	}
	ps, err := h.Processes(cg)
	if err != nil || len(ps) == 0 {
		return nil
	}
	if _, known := a.Attribution.LeaseOf(ps[0].PID); known {
		return nil
	}
	return ps
}

// adoptContainer gives a container a lease, or returns why it gets none. It is called again for one that waits for its reservation.
func (a *Adopter) adoptContainer(ctx context.Context, of state.GrantKey, cg string, ps []cgroup.Process) error {
	found := a.reservedFor(ctx, of, ps, a.containers.passes[cg])
	if found.wait {
		return nil
	}
	err := found.err
	if err == nil {
		err = a.admitContainer(ctx, of, cg, found.lease, ps[0])
	}
	if err != nil && a.containers.refused[cg] == "" {
		a.Events.Publish(api.Event{
			Kind:   "container.refused",
			Tenant: of.Tenant,
			Message: fmt.Sprintf(
				"%s under grant %s of %s has no lease: %v", containerName(cg), of.Grant, of.Tenant, err,
			),
		})
	}
	return err
}

// containerName returns the name of a container in messages: runtimes name its cgroup by the container's long id.
func containerName(cg string) string {
	name := strings.TrimSuffix(path.Base(cg), ".scope")
	for _, prefix := range []string{"libpod-", "docker-", "crio-", "cri-containerd-"} {
		if id, ok := strings.CutPrefix(name, prefix); ok {
			return "container " + id[:min(len(id), 12)]
		}
	}
	return "container " + name
}

// admitContainer starts the lease that waited for a container, or a new one.
func (a *Adopter) admitContainer(ctx context.Context, s state.GrantKey, cg, reserved string, p cgroup.Process) error {
	name := containerName(cg)
	r := lease.Request{
		Tenant:    s.Tenant,
		Grant:     s.Grant,
		Admin:     true,
		User:      "root",
		Command:   []string{name},
		Origin:    lease.OriginContainer,
		Cgroup:    cg,
		Immediate: true,
	}
	if base := path.Base(cg); strings.HasSuffix(base, ".scope") || strings.HasSuffix(base, ".slice") {
		r.Unit = base
	}
	ctx, cancel := context.WithTimeout(ctx, stop.IsolationTimeout)
	defer cancel()
	if reserved != "" {
		l, err := a.startReserved(ctx, reserved, cg, r.Unit, p)
		if err != nil {
			return err
		}
		a.Leases.WatchLease(l.ID)
		a.Events.Publish(l.Event("lease.started", name+" was started with its device"))
		return nil
	}
	ticket, err := a.Table.Submit(r)
	if err != nil {
		return err
	}
	l, _, err := a.Table.Start(ctx, ticket.ID(), lease.Process(p))
	if err != nil {
		ticket.Cancel()
		return err
	}
	a.Leases.WatchLease(l.ID)
	a.Events.Publish(l.Event("lease.started", name+" was started under the grant's slice"))
	return nil
}
