package stop

import (
	"os"
	"strings"

	"github.com/gpushare/gpushare/internal/procfs"
)

// FirstUser is the first uid of people; those below are root's and the system's services'.
const FirstUser = 1000

// Decision says whether a process may be stopped, or why it is left alone.
type Decision int

// The decisions.
const (
	MayStop  Decision = iota
	IsRoot            // root could do anyway what stopping it would prevent
	IsSystem          // monitoring, a display, another job manager. Who installs those knows why, and most are started again
	Unknown           // its user cannot be read
)

// Process describes a process as far as the rule asks.
type Process struct {
	UID   uint32
	Known bool // the uid was read
	Login bool // it runs in a login rather than as a service of the system
	// Escaped: it came out of a lease, so that it is a tenant's whatever its uid.
	Escaped bool
}

// Decide is the one rule about who may be stopped, whatever the authority: root's processes and the system's services,
// which have a uid below FirstUser outside of a login, are left alone. own is the daemon's uid: a daemon that is not
// root may stop what runs as the same user. Processes in a lease are not asked about: who may stop a lease is a question
// of rights.
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

// DecidePID reads a process that is in no lease, and decides.
func DecidePID(pid int) Decision { return decidePID(pid, false) }

// DecideEscaped is Judge for a process that came out of a lease.
func DecideEscaped(pid int) Decision { return decidePID(pid, true) }

func decidePID(pid int, escaped bool) Decision {
	uid, err := procfs.UID(pid)
	p := Process{UID: uid, Known: err == nil, Escaped: escaped}
	if cg, err := procfs.Cgroup(pid); err == nil {
		p.Login = InLogin(cg)
	}
	return Decide(p, os.Geteuid())
}

// InLogin tells whether a cgroup is of a user's logins rather than of the system.
func InLogin(cgroup string) bool { return strings.HasPrefix(cgroup, "/user.slice/") }
