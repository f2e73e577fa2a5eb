package stop

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/lease"
)

// FirstUser is the first uid of people; lower uids are root and the system's services.
const FirstUser = 1000

// Decision is whether a process may be stopped, or why not.
type Decision int

// The decisions.
const (
	MayStop  Decision = iota
	IsRoot            // root's: root is not restricted by gpushare, so stopping it would not help
	IsSystem          // a system service: monitoring, a display, another job manager. Most are started again
	Unknown           // its uid cannot be read
	IsOther           // another user's, in a cgroup that an engine named for its lease
)

// Process is what the rule needs to know of a process.
type Process struct {
	UID   uint32
	Known bool // the uid was read
	Login bool // it runs in a login, not as a service of the system
	// Escaped: it left a lease, so it belongs to a tenant whatever its uid.
	Escaped bool
}

// Decide is the one rule which processes may be stopped, with any authority. Not stopped are root's processes and the
// system's services, which have a uid below FirstUser outside of a login. own is the daemon's uid: a daemon that is not
// root may stop processes of its own user. It is not called for processes in a lease: the rights of the caller decide
// who may stop a lease.
func Decide(p Process, own int) Decision {
	switch {
	case !p.Known:
		return Unknown
	case p.UID == 0:
		return IsRoot
	case p.UID < FirstUser && !p.Login && !p.Escaped && int(p.UID) != own:
		return IsSystem
	}
	return MayStop
}

// UnattributedGrace is the time between the event that a process without a lease uses a managed GPU and its SIGTERM: the process
// may be about to enter a lease, and an administrator can react to the event.
const UnattributedGrace = 30 * time.Second

// DecidePID reads a process that is in no lease, and decides.
func DecidePID(pid int) Decision { return decidePID(pid, false) }

// DecideEscaped is DecidePID for a process that left a lease.
func DecideEscaped(pid int) Decision { return decidePID(pid, true) }

func decidePID(pid int, escaped bool) Decision {
	uid, err := procfs.UID(pid)
	p := Process{UID: uid, Known: err == nil, Escaped: escaped}
	if cg, err := procfs.Cgroup(pid); err == nil {
		p.Login = InLogin(cg)
	}
	return Decide(p, os.Geteuid())
}

// NamedByRoot reports whether root, or the daemon's own user, named the cgroups of a lease, or no engine did. Root says what a cgroup is
// of, as slurmd and the kubelet do of those that they made. The word of another engine counts for processes of the user of its lease.
func NamedByRoot(l *lease.Lease) bool { return l.Engine == nil || RootOrSelf(l.AttachedBy) }

// RootOrSelf reports whether a uid is root's or the daemon's own.
func RootOrSelf(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// Whole reports whether each process in the cgroups of a lease may be stopped with it: those of a pod may all be root's, and no user is
// named for it.
func Whole(l *lease.Lease) bool { return l.Engine == nil || NamedByRoot(l) && l.UID == l.AttachedBy }

// DecideNamed decides about a process of a lease by the user whom its engine named: root's are not stopped, as slurmstepd in the cgroup of
// a job, and those of other users are not where another engine than root named the cgroup.
func DecideNamed(l *lease.Lease, pid int) Decision {
	if Whole(l) {
		return MayStop
	}
	uids, err := procfs.UIDs(pid)
	switch {
	case err != nil:
		return Unknown
	case slices.Contains(uids, 0):
		return IsRoot
	case NamedByRoot(l):
		return MayStop
	case slices.ContainsFunc(uids, func(uid int) bool { return uid != l.UID }) && !procfs.InNamespaceOf(pid, uint32(l.UID)):
		return IsOther
	}
	return MayStop
}

// InLogin reports whether a cgroup belongs to a user's logins, not to the system.
func InLogin(cgroup string) bool { return strings.HasPrefix(cgroup, "/user.slice/") }
