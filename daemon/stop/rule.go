package stop

import (
	"os"
	"strings"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
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

// InLogin reports whether a cgroup belongs to a user's logins, not to the system.
func InLogin(cgroup string) bool { return strings.HasPrefix(cgroup, "/user.slice/") }
