package server

import (
	"path"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// FirstWord is the name of the program of a command. It is all that other users may read of it: arguments may be secrets, and a
// host with hidepid=2 hides them too. Some processes have their arguments in the same string.
func FirstWord(command []string) string {
	if len(command) == 0 {
		return ""
	}
	words := strings.Fields(command[0])
	if len(words) == 0 {
		return ""
	}
	return path.Base(words[0])
}

// seesCommand reports whether the caller may read the whole command of a lease.
func (c *Caller) seesCommand(l *api.Lease) bool { return c.Admin || c.UID == l.UID }

// HideCommands returns leases with the commands that the caller may read. It does not change the list.
func (c *Caller) HideCommands(leases []api.Lease) []api.Lease {
	out := slices.Clone(leases)
	for i := range out {
		if l := &out[i]; len(l.Command) > 0 && !c.seesCommand(l) {
			l.Command = []string{FirstWord(l.Command)}
		}
	}
	return out
}
