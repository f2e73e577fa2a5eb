package leases

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/lease"
)

// attachTarget is a process, unit or cgroup to attach. Its processes are not moved.
type attachTarget struct {
	process cgroup.Process // for a cgroup: one of its processes
	cgroup  string         // empty: the process and all its descendants
	unit    string
	uid     int // of its user; -1 if it has several
	text    string
	command []string
}

// PostAttach attaches a process, a unit or a cgroup that runs already to a lease. It is a route of its own because the
// process is not the caller.
func (ls *Leases) PostAttach(c *server.Call) error {
	if err := ls.mayAttach(c.Caller); err != nil {
		return err
	}
	q, err := server.Decode[api.AttachRequest](c)
	if err != nil {
		return err
	}
	r := lease.Request{
		Tenant:     q.Tenant,
		Grant:      q.Grant,
		Kind:       q.Kind,
		Member:     c.Caller.Tenants,
		Admin:      c.Caller.Admin,
		By:         ls.Identities.RequesterOf(c.Caller),
		User:       c.Caller.Name,
		UID:        c.Caller.UID,
		Wait:       (*time.Duration)(q.Wait),
		Origin:     lease.OriginAttached,
		AttachedBy: c.Caller.UID,
		GPUs:       q.GPUs,
		MaxTime:    q.MaxTime,
	}
	if err := placeable("attach", q.GPUs, q.MaxTime); err != nil {
		return err
	}
	// The rights come first, so that a refusal says nothing about the target.
	if err := ls.Table.Allowed(&r); err != nil {
		return err
	}
	target, err := ls.target(c.Ctx(), c.Caller, q)
	if err != nil {
		return err
	}
	r.Command, r.Cgroup, r.Unit = lease.ShortCommand(target.command, lease.MaxKept), target.cgroup, target.unit
	c.Keep(0)
	if target.uid >= 0 && target.uid != c.Caller.UID {
		r.User, r.UID = ls.Identities.Names.UserName(target.uid), target.uid
	}
	return ls.admit(c, r, lease.Process(target.process), nil, c.Caller.Name+" attached "+target.text)
}

// mayAttach returns why the caller may not attach anything. It is checked again after a wait in the queue.
func (ls *Leases) mayAttach(caller *server.Caller) error {
	if caller.Admin || !ls.State.Desired().AttachesForAdmins() {
		return nil
	}
	return &api.Error{
		Kind:    api.KindDenied,
		Message: caller.Name + " may not attach: the spec has 'isolation.attach: admin'",
		Hint:    "start the command with 'gpushare run'; an administrator may attach it",
	}
}

// target finds what the request names, and refuses what the caller may not attach.
func (ls *Leases) target(ctx context.Context, caller *server.Caller, q *api.AttachRequest) (*attachTarget, error) {
	var target *attachTarget
	var err error
	switch {
	case q.PID != 0 && q.Unit == "" && q.Cgroup == "":
		target, err = ls.targetProcess(ctx, caller, q.PID)
	case q.PID == 0 && q.Unit != "" && q.Cgroup == "":
		target, err = ls.targetUnit(ctx, caller, q.Unit)
	case q.PID == 0 && q.Unit == "" && q.Cgroup != "":
		target, err = ls.targetCgroup(caller, q.Cgroup)
	default:
		err = &api.Error{
			Kind:    api.KindInvalid,
			Message: "cannot attach: the request names no target, or several",
			Hint:    "use exactly one of --pid, --unit and --cgroup",
		}
	}
	if err != nil {
		return nil, err
	}
	if name := strings.TrimSpace(q.Name); name != "" {
		target.command = []string{name}
	}
	return target, nil
}

// targetProcess is a process and all its descendants. A member may attach only a process of their own uid: the member
// is responsible for what it uses, and it is stopped if it uses too much.
func (ls *Leases) targetProcess(ctx context.Context, caller *server.Caller, pid int) (*attachTarget, error) {
	what := fmt.Sprintf("pid %d", pid)
	start, err := procfs.Start(pid)
	if pid < 1 || err != nil {
		return nil, &api.Error{
			Kind:    api.KindNotFound,
			Message: "cannot attach " + what + ": no such process",
			Hint:    "use the pid on the host: a process in a container has another pid there",
		}
	}
	uids, err := procfs.UIDs(pid)
	if err != nil || !procfs.Alive(pid, start) {
		return nil, &api.Error{Kind: api.KindNotFound, Message: "cannot attach " + what + ": it exited"}
	}
	if !caller.Admin && slices.ContainsFunc(uids, func(id int) bool { return id != caller.UID }) {
		return nil, &api.Error{
			Kind:    api.KindDenied,
			Message: fmt.Sprintf("%s may not attach %s: it belongs to another user", caller.Name, what),
			Hint:    "an administrator may attach it",
		}
	}
	if of := procfs.ProcessOf(pid); of != pid && of != 0 { // /proc has threads by their own ids too.
		return nil, &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot attach %s: it is a thread of process %d: attach that", what, of),
			Hint:    fmt.Sprintf("use --pid %d", of),
		}
	}
	if why := ls.notAttachable(pid); why != "" {
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot attach " + what + ": " + why}
	}
	if leaseID, ok := ls.Attribution.LeaseOf(pid); ok {
		return nil, ls.alreadyLeased(what, leaseID, caller.Sees)
	}
	name := procfs.Name(pid)
	return &attachTarget{
		process: cgroup.Process{PID: pid, Start: start}, uid: uids[0], text: fmt.Sprintf("%s (%s)", what, name),
		command: []string{procfs.Command(ctx, pid)},
	}, nil
}

// alreadyLeased refuses a target that has a lease, and names the lease if its tenant may be named.
func (ls *Leases) alreadyLeased(what, leaseID string, sees func(tenant string) bool) error {
	if l, ok := ls.Table.Get(leaseID); !ok || !sees(l.Terms.Tenant) {
		return &api.Error{
			Kind:    api.KindConflict,
			Message: fmt.Sprintf("cannot attach %s: it is in a lease already", what),
			Hint:    "an administrator sees which",
		}
	}
	return &api.Error{
		Kind:    api.KindConflict,
		Message: fmt.Sprintf("cannot attach %s: it is in lease %s already", what, leaseID),
		Hint:    "'gpushare lease release " + leaseID + "' removes it from an attached lease",
	}
}

// notAttachable returns why a process can be in no lease: kernel threads, pid 1, gpushared's own processes and its
// ancestors.
func (ls *Leases) notAttachable(pid int) string {
	s, err := procfs.Read(pid)
	switch {
	case err != nil:
		return "it exited"
	case pid == 1:
		return "every process is its descendant"
	case pid == 2 || s.PPID == 2:
		return "it is a kernel thread"
	case pid == ls.WorkerPID():
		return "it is a process of gpushare"
	}
	for up := os.Getpid(); up > 1; {
		if up == pid {
			return "it is an ancestor of gpushared"
		}
		s, err := procfs.Read(up)
		if err != nil {
			break
		}
		up = s.PPID
	}
	return ""
}

// targetUnit is all processes of a system unit. Only an administrator may attach one: the limits of the lease then
// apply to a service of other users.
func (ls *Leases) targetUnit(ctx context.Context, caller *server.Caller, unit string) (*attachTarget, error) {
	if !caller.Admin {
		return nil, &api.Error{
			Kind:    api.KindDenied,
			Message: caller.Name + " may not attach a system unit",
			Hint:    "attach your own process with --pid; an administrator may attach units",
		}
	}
	units := ls.Port.Abilities().Units
	if units == nil {
		return nil, &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot attach unit %s: there is no service manager (%s)", unit, devicepolicy.AdapterText(ls.Port.Info())),
			Hint:    "attach its main process with --pid",
		}
	}
	if !strings.Contains(unit, ".") {
		unit += ".service"
	}
	cg, err := units.UnitCgroup(ctx, unit)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil, &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("cannot attach unit %s: it does not run", unit),
			Hint:    "see 'systemctl status " + unit + "'",
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot attach unit %s: %w", unit, err)
	}
	target, err := ls.targetCgroup(caller, cg)
	if err != nil {
		return nil, err
	}
	target.unit, target.text, target.command = unit, "unit "+unit, []string{unit}
	return target, nil
}

// targetCgroup is all processes in a cgroup and below it. A member may attach one that is delegated to them and has
// only their processes: into any other cgroup a process of another user may come later, and the member would be
// responsible for it.
func (ls *Leases) targetCgroup(caller *server.Caller, name string) (*attachTarget, error) {
	h, cg, ps, err := cgroupToAttach(name)
	if err != nil {
		return nil, err
	}
	target := &attachTarget{process: ps[0], cgroup: cg, uid: oneUser(ps), text: "cgroup " + cg, command: []string{cg}}
	if !caller.Admin && (target.uid != caller.UID || dirUID(h.Dir(cg)) != caller.UID) {
		return nil, &api.Error{
			Kind: api.KindDenied,
			Message: fmt.Sprintf(
				"%s may not attach cgroup %s: it also has processes of other users, or is not delegated", caller.Name, name,
			),
			Hint: "a member may attach a delegated cgroup, such as those of 'systemd-run --user', and their own processes with --pid; an administrator may attach any",
		}
	}
	if why := ls.ownCgroup(cg); why != "" {
		return nil, invalidCgroup(name, why, "")
	}
	for _, p := range ps {
		if leaseID, ok := ls.Attribution.LeaseOf(p.PID); ok {
			return nil, ls.alreadyLeased(fmt.Sprintf("cgroup %s: pid %d", name, p.PID), leaseID, caller.Sees)
		}
	}
	return target, nil
}

func invalidCgroup(name, why, hint string) error {
	return &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot attach cgroup %s: %s", name, why), Hint: hint}
}

// cgroupToAttach returns the cgroup that a caller names, and its processes: at least one.
func cgroupToAttach(name string) (h cgroup.Hierarchy, cg string, ps []cgroup.Process, err error) {
	if h, cg, err = cleanCgroup(name); err != nil {
		return h, "", nil, err
	}
	busy, err := h.Populated(cg)
	if errors.Is(err, cgroup.ErrNotFound) {
		return h, "", nil, &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("cannot attach cgroup %s: no such cgroup", name)}
	}
	if err == nil {
		ps, err = h.Processes(cg)
	}
	if err != nil {
		return h, "", nil, fmt.Errorf("cannot attach cgroup %s: %w", name, err)
	}
	if !busy || len(ps) == 0 {
		return h, "", nil, invalidCgroup(name, "it has no process", "attach it when it has a process: a lease ends with its last process")
	}
	return h, cg, ps, nil
}

// oneUser is the one user of processes, by all their uids; -1 if there are several, or none is known.
func oneUser(ps []cgroup.Process) int {
	uid := -1
	for _, p := range ps {
		uids, err := procfs.UIDs(p.PID)
		if err != nil {
			continue // It exited.
		}
		for _, id := range uids {
			if uid >= 0 && id != uid {
				return -1
			}
			uid = id
		}
	}
	return uid
}

// ownCgroup returns why a cgroup cannot be attached: gpushare itself runs in it, or gpushare created it.
func (ls *Leases) ownCgroup(cg string) string {
	for _, pid := range []int{os.Getpid(), ls.WorkerPID()} {
		if at, err := procfs.Cgroup(pid); err == nil && cgroup.Below(at, cg) {
			return "gpushare itself runs in it"
		}
	}
	for _, s := range ls.Observer.Last().Slices {
		if s.Path != "" && (cgroup.Below(cg, s.Path) || cgroup.Below(s.Path, cg)) {
			return "it is a cgroup of gpushare, or has one below it"
		}
	}
	return ""
}

func dirUID(dir string) int {
	fi, err := os.Stat(dir)
	if err != nil {
		return -1
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return -1
	}
	return int(st.Uid)
}

// checkUnattributed checks again, immediately before the lease starts, that the target is in no other lease: the
// request may have waited in the queue, and another caller may attach the same target. inPlaceMu is held.
func (ls *Leases) checkUnattributed(l *lease.Lease, p lease.Process) error {
	sees := func(tenant string) bool { return tenant == l.Terms.Tenant }
	if l.Cgroup == "" {
		if leaseID, ok := ls.Attribution.LeaseOf(p.PID); ok && leaseID != l.ID {
			return ls.alreadyLeased(fmt.Sprintf("pid %d", p.PID), leaseID, sees)
		}
		return nil
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return err
	}
	for _, cg := range l.Cgroups() {
		ps, err := h.Processes(cg)
		if err != nil && !errors.Is(err, cgroup.ErrNotFound) {
			return err
		}
		for _, m := range ps {
			if leaseID, ok := ls.Attribution.LeaseOf(m.PID); ok && leaseID != l.ID {
				return ls.alreadyLeased(fmt.Sprintf("cgroup %s: pid %d", cg, m.PID), leaseID, sees)
			}
		}
	}
	return nil
}

// ReleaseLease removes an attached lease; its processes continue.
func (ls *Leases) ReleaseLease(c *server.Call) error {
	id := c.R.PathValue("id")
	l, ok := ls.Table.Get(id)
	if !ok || !(c.Caller.Admin || c.Caller.IsMember(l.Terms.Tenant) || c.Caller.IsUserOf(&l)) {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no lease %q that you may release", id),
			Hint:    "see 'gpushare lease list'; a lease ends by itself with its last process",
		}
	}
	if l.Origin != lease.OriginAttached {
		hint := "'gpushare lease stop " + id + "' ends its processes"
		switch l.Origin {
		case lease.OriginLogin, lease.OriginUnit:
			hint = "it is adopted by the spec: remove it from 'adopt:' there"
		case lease.OriginContainer:
			hint = "it ends with the container"
		}
		return &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot release lease %s: it was not attached", id), Hint: hint}
	}
	c.Note.Tenant, c.Note.Text = l.Terms.Tenant, "a lease of "+l.User
	if !c.Caller.MayEnd(&l) {
		return &api.Error{
			Kind: api.KindDenied,
			Message: fmt.Sprintf(
				"%s may not release lease %s: %s attached it", c.Caller.Name, id, ls.Identities.Names.UserName(l.AttachedBy),
			),
			Hint: "the user who attached it or an administrator may",
		}
	}
	if !c.Caller.IsUserOf(&l) {
		if err := c.AsAdmin("release lease " + id); err != nil {
			return err
		}
	}
	ctx, err := server.GoOn(c.Ctx())
	if err != nil {
		return err
	}
	if err := ls.ReleaseAttached(ctx, &l, "released by "+c.Caller.Name); err != nil {
		return err
	}
	return c.Reply(http.StatusOK, map[string]string{"released": id})
}
