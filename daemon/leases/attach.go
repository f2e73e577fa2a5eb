package leases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
)

// attachTarget is what somebody wants attached. It stays where it is.
type attachTarget struct {
	process cgroup.Process // of a cgroup: one of its processes
	cgroup  string         // empty: the process and all that it starts
	unit    string
	uid     int // whose it is; -1 when of several users
	text    string
	command []string
}

// PostAttach takes a process, a unit or a cgroup that runs already into a lease. It is another route than that of run
// because another process is meant than the one that asks.
func (ls *Leases) PostAttach(c *server.Call) error {
	b, err := c.Body()
	if err != nil {
		return err
	}
	var q api.AttachRequest
	if err := json.Unmarshal(b, &q); err != nil {
		return &api.Error{Kind: api.KindInvalid, Message: "cannot read the request: " + err.Error()}
	}
	target, err := ls.target(c.Ctx(), c.Caller, &q)
	if err != nil {
		return err
	}
	r := lease.Request{
		Tenant: q.Tenant, Grant: q.Grant, Kind: q.Kind, Member: c.Caller.Tenants, Admin: c.Caller.Admin,
		User: c.Caller.Name, UID: c.Caller.UID, Command: target.command, Wait: (*time.Duration)(q.Wait),
		Origin: lease.OriginAttached, Cgroup: target.cgroup, Unit: target.unit, AttachedBy: c.Caller.UID,
	}
	if target.uid >= 0 && target.uid != c.Caller.UID {
		r.User, r.UID = ls.Identities.Names.UserName(target.uid), target.uid
	}
	return ls.admit(c, r, lease.Process(target.process), nil, c.Caller.Name+" attached "+target.text)
}

// target finds what a request means, and refuses what the caller may not attach.
func (ls *Leases) target(ctx context.Context, caller *server.Caller, q *api.AttachRequest) (*attachTarget, error) {
	var target *attachTarget
	var err error
	switch {
	case q.PID != 0 && q.Unit == "" && q.Cgroup == "":
		target, err = ls.targetProcess(caller, q.PID)
	case q.PID == 0 && q.Unit != "" && q.Cgroup == "":
		target, err = ls.targetUnit(ctx, caller, q.Unit)
	case q.PID == 0 && q.Unit == "" && q.Cgroup != "":
		target, err = ls.targetCgroup(caller, q.Cgroup)
	default:
		err = &api.Error{Kind: api.KindInvalid, Message: "cannot tell what to attach", Hint: "name exactly one: a process with --pid, a unit with --unit, or a cgroup with --cgroup"}
	}
	if err != nil {
		return nil, err
	}
	if name := strings.TrimSpace(q.Name); name != "" {
		target.command = []string{name}
	}
	return target, nil
}

// targetProcess is a process and all that it starts. A member may attach what is wholly his own: he answers for what it
// uses, and it is stopped when it uses too much.
func (ls *Leases) targetProcess(caller *server.Caller, pid int) (*attachTarget, error) {
	what := fmt.Sprintf("process %d", pid)
	start, err := procfs.Start(pid)
	if pid < 1 || err != nil {
		return nil, &api.Error{Kind: api.KindNotFound, Message: "cannot attach " + what + ": there is none", Hint: "a process inside a container has another number outside of it"}
	}
	uids, err := procfs.UIDs(pid)
	if err != nil || !procfs.Alive(pid, start) {
		return nil, &api.Error{Kind: api.KindNotFound, Message: "cannot attach " + what + ": it ended"}
	}
	if !caller.Admin && slices.ContainsFunc(uids, func(id int) bool { return id != caller.UID }) {
		return nil, &api.Error{Kind: api.KindDenied, Message: fmt.Sprintf("%s may not attach %s: it is not his own", caller.Name, what), Hint: "an administrator may"}
	}
	if why := ls.notAttachable(pid); why != "" {
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot attach " + what + ": " + why}
	}
	if leaseID, ok := ls.Attribution.LeaseOf(pid); ok {
		return nil, alreadyLeased(what, leaseID)
	}
	name := procfs.Name(pid)
	return &attachTarget{
		process: cgroup.Process{PID: pid, Start: start}, uid: uids[0], text: fmt.Sprintf("%s (%s)", what, name),
		command: []string{procfs.Command(pid)},
	}, nil
}

func alreadyLeased(what, leaseID string) error {
	return &api.Error{Kind: api.KindConflict, Message: fmt.Sprintf("cannot attach %s: it is in lease %s already", what, leaseID), Hint: "'gpushare lease release " + leaseID + "' takes it out of a lease that was attached"}
}

// notAttachable says why a process can be in no lease: the kernel's own, the first one, and those that we live by.
func (ls *Leases) notAttachable(pid int) string {
	s, err := procfs.Read(pid)
	switch {
	case err != nil:
		return "it ended"
	case pid == 1:
		return "every process is its child"
	case pid == 2 || s.PPID == 2:
		return "it is the kernel's"
	case pid == ls.WorkerPID():
		return "it is gpushare's own"
	}
	for up := os.Getpid(); up > 1; {
		if up == pid {
			return "gpushared runs under it"
		}
		s, err := procfs.Read(up)
		if err != nil {
			break
		}
		up = s.PPID
	}
	return ""
}

// targetUnit is all processes of a unit of the system. Units are the administrator's: who may attach one decides what
// becomes of a service that others use.
func (ls *Leases) targetUnit(ctx context.Context, caller *server.Caller, unit string) (*attachTarget, error) {
	if !caller.Admin {
		return nil, &api.Error{Kind: api.KindDenied, Message: caller.Name + " may not attach a unit of the system", Hint: "attach your own process with --pid; an administrator may attach units"}
	}
	units := ls.Port.Abilities().Units
	if units == nil {
		return nil, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot attach unit %s: there is no service manager to ask (%s)", unit, devicepolicy.AdapterText(ls.Port.Info())), Hint: "attach its main process with --pid"}
	}
	if !strings.Contains(unit, ".") {
		unit += ".service"
	}
	cg, err := units.UnitCgroup(ctx, unit)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil, &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("cannot attach unit %s: it does not run", unit), Hint: "'systemctl status " + unit + "' says why"}
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

// targetCgroup is all processes in a cgroup and below it. A member may attach one that was delegated to him and holds
// nobody else: into any other cgroup somebody else's process may come later, and he would answer for that.
func (ls *Leases) targetCgroup(caller *server.Caller, name string) (*attachTarget, error) {
	invalid := func(why, hint string) error {
		return &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot attach cgroup %s: %s", name, why), Hint: hint}
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return nil, &api.Error{Kind: api.KindUnavailable, Message: "cannot attach a cgroup: this host has no cgroup v2 hierarchy", Hint: "attach a process with --pid"}
	}
	cg := strings.TrimSuffix(name, "/")
	if rest, ok := strings.CutPrefix(cg, h.Mount); ok {
		cg = rest
	}
	if !strings.HasPrefix(cg, "/") || filepath.Clean(cg) != cg || cg == "/" {
		return nil, invalid("it is no path of a cgroup below the root", "write it as /proc/PID/cgroup shows it, or below "+h.Mount)
	}
	if why := ls.ownCgroup(cg); why != "" {
		return nil, invalid(why, "")
	}
	busy, err := h.Populated(cg)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil, &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("cannot attach cgroup %s: there is none", name)}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot attach cgroup %s: %w", name, err)
	}
	ps, err := h.Processes(cg)
	if err == nil && (!busy || len(ps) == 0) {
		return nil, invalid("it holds no process", "attach it when its first process runs: a lease ends with its last process")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot attach cgroup %s: %w", name, err)
	}
	target := &attachTarget{process: ps[0], cgroup: cg, uid: -1, text: "cgroup " + cg, command: []string{cg}}
	users := map[int]bool{}
	for _, p := range ps {
		uids, err := procfs.UIDs(p.PID)
		if err != nil {
			continue // It ended.
		}
		if leaseID, ok := ls.Attribution.LeaseOf(p.PID); ok {
			return nil, alreadyLeased(fmt.Sprintf("cgroup %s: process %d", name, p.PID), leaseID)
		}
		for _, id := range uids {
			users[id] = true
		}
	}
	for id := range users {
		target.uid = id
	}
	if len(users) != 1 {
		target.uid = -1
	}
	if !caller.Admin && (target.uid != caller.UID || dirUID(h.Dir(cg)) != caller.UID) {
		return nil, &api.Error{
			Kind: api.KindDenied, Message: fmt.Sprintf("%s may not attach cgroup %s: it is not his alone", caller.Name, name),
			Hint: "a member may attach a cgroup that was delegated to him, as those of 'systemd-run --user', and his own processes with --pid; an administrator may attach any",
		}
	}
	return target, nil
}

// ownCgroup says why a cgroup is no guest's: gpushare itself lives in it, or it is one that gpushare makes.
func (ls *Leases) ownCgroup(cg string) string {
	for _, pid := range []int{os.Getpid(), ls.WorkerPID()} {
		if at, err := procfs.Cgroup(pid); err == nil && cgroup.Below(at, cg) {
			return "gpushare itself runs in it"
		}
	}
	for _, s := range ls.Observer.Last().Slices {
		if s.Path != "" && (cgroup.Below(cg, s.Path) || cgroup.Below(s.Path, cg)) {
			return "it belongs to gpushare, or what does is below it"
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

// checkUnattributed looks once more, right before the lease starts, whether what is attached is in no other lease: it may have
// waited in the queue, and somebody else may attach the same. visiting is held.
func (ls *Leases) checkUnattributed(l *lease.Lease, p lease.Process) error {
	if l.Cgroup == "" {
		if leaseID, ok := ls.Attribution.LeaseOf(p.PID); ok && leaseID != l.ID {
			return alreadyLeased(fmt.Sprintf("process %d", p.PID), leaseID)
		}
		return nil
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		return err
	}
	ps, err := h.Processes(l.Cgroup)
	if err != nil && !errors.Is(err, cgroup.ErrNotFound) {
		return err
	}
	for _, m := range ps {
		if leaseID, ok := ls.Attribution.LeaseOf(m.PID); ok && leaseID != l.ID {
			return alreadyLeased(fmt.Sprintf("cgroup %s: process %d", l.Cgroup, m.PID), leaseID)
		}
	}
	return nil
}

// ReleaseLease takes an attached lease from the books; its processes go on.
func (ls *Leases) ReleaseLease(c *server.Call) error {
	id := c.R.PathValue("id")
	l, ok := ls.Table.Get(id)
	if !ok || !(c.Caller.Admin || c.Caller.IsMember(l.Terms.Tenant)) {
		return &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("there is no lease %q that you may release", id), Hint: "'gpushare lease list' shows them; a lease ends by itself with its last process"}
	}
	if l.Origin != lease.OriginAttached {
		hint := "'gpushare lease stop " + id + "' ends its processes"
		switch l.Origin {
		case lease.OriginLogin, lease.OriginUnit:
			hint = "it is adopted by the spec: take it out of 'adopt:' there"
		case lease.OriginContainer:
			hint = "it lasts as long as the container"
		}
		return &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot release lease %s: it was not attached", id), Hint: hint}
	}
	if !c.Caller.MayEnd(&l) {
		return &api.Error{Kind: api.KindDenied, Message: fmt.Sprintf("%s may not release lease %s: %s attached it", c.Caller.Name, id, ls.Identities.Names.UserName(l.AttachedBy)), Hint: "whoever attached it or an administrator may"}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Ctx()), stop.IsolationTimeout)
	defer cancel()
	if err := ls.Table.Ended(ctx, id, "released by "+c.Caller.Name); err != nil {
		return err
	}
	if err := ls.Stopper.AwaitEnded(ctx, id); err != nil {
		return err
	}
	ls.Wake()
	return c.Reply(http.StatusOK, map[string]string{"released": id})
}
