package leases

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/lease"
)

// EngineCgroup checks a cgroup that an engine names for a lease. It may not be there yet: then there is no process. It belongs to root or
// to one of the uids: where a user has a part of the hierarchy, that user could create the cgroup before the engine does.
func (ls *Leases) EngineCgroup(name string, uids ...int) (cg string, p *cgroup.Process, err error) {
	h, cg, err := cleanCgroup(name)
	if err != nil {
		return "", nil, err
	}
	if at := h.OtherWay(name); at != "" { // A cgroup of that name would never come.
		why := "it leads to " + at + ", by a link or by another mount than " + h.Mount
		return "", nil, invalidCgroup(name, why, "use the path in /proc/PID/cgroup, or one below "+h.Mount)
	}
	if uid := dirUID(h.Dir(cg)); uid > 0 && !slices.Contains(uids, uid) {
		return "", nil, &api.Error{
			Kind: api.KindDenied,
			Message: fmt.Sprintf(
				"cannot attach cgroup %s: it belongs to %s, and not to root, the engine, or the user of the lease",
				name, ls.Identities.Names.UserName(uid),
			),
			Hint: "'ls -ld " + h.Dir(cg) + "' shows it",
		}
	}
	if why := ls.ownCgroup(cg); why != "" {
		return "", nil, invalidCgroup(name, why, "")
	}
	ps, err := h.Processes(cg)
	if errors.Is(err, cgroup.ErrNotFound) || err == nil && len(ps) == 0 {
		return cg, nil, nil
	}
	if err != nil {
		return "", nil, fmt.Errorf("cannot attach cgroup %s: %w", name, err)
	}
	for _, p := range ps {
		if leaseID, ok := ls.Attribution.LeaseOf(p.PID); ok {
			all := func(string) bool { return true }
			return "", nil, ls.alreadyLeased(fmt.Sprintf("cgroup %s: pid %d", name, p.PID), leaseID, all)
		}
	}
	return cg, &ps[0], nil
}

// CleanCgroup is the path of a cgroup as the leases have it.
func (*Leases) CleanCgroup(name string) (string, error) {
	_, cg, err := cleanCgroup(name)
	return cg, err
}

// cleanCgroup returns a cgroup as /proc/PID/cgroup has it, whether there is such a cgroup or not.
func cleanCgroup(name string) (h cgroup.Hierarchy, cg string, err error) {
	if h, err = cgroup.FindHierarchy(); err != nil {
		return h, "", &api.Error{
			Kind:    api.KindUnavailable,
			Message: "cannot attach a cgroup: this host has no cgroup v2 hierarchy",
			Hint:    "attach a process with --pid",
		}
	}
	cg = strings.TrimSuffix(name, "/")
	if rest, ok := strings.CutPrefix(cg, h.Mount); ok {
		cg = rest
	}
	if !strings.HasPrefix(cg, "/") || filepath.Clean(cg) != cg || cg == "/" {
		hint := "use the path in /proc/PID/cgroup, or one below " + h.Mount
		return h, "", invalidCgroup(name, "not the path of a cgroup below the root", hint)
	}
	return h, cg, nil
}

// ReleaseAttached ends a lease that was attached. Its processes continue.
func (ls *Leases) ReleaseAttached(ctx context.Context, l *lease.Lease, reason string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stop.IsolationTimeout)
	defer cancel()
	if dropped, err := ls.Table.DropUnbound(ctx, l.ID, reason); dropped {
		ls.Events.Publish(l.Event("lease.ended", reason))
		ls.Wake()
		return err
	}
	if err := ls.Table.Ended(ctx, l.ID, reason); err != nil {
		return err
	}
	if err := ls.Stopper.AwaitEnded(ctx, l.ID); err != nil {
		return err
	}
	ls.Wake()
	return nil
}

// EndedLease returns a lease that has ended, while it is kept.
func (ls *Leases) EndedLease(id string) (api.Lease, bool) {
	e, ok := ls.Ended.get(id)
	if !ok {
		return api.Lease{}, false
	}
	return e.wire(), true
}
