package cgroup

import (
	"errors"
	"path"
	"slices"
	"strings"
)

// LoginSlice is the slice that systemd and logind put every login into. A user's service manager decides the names below it.
const LoginSlice = "/user.slice"

// FindUnits finds the cgroups of units of the system: "cron.service" is "/system.slice/cron.service" on most hosts. A unit
// that has no process may have no cgroup, and is not in the result. Only slices contain units: what is below a service or a
// scope is named by the service, or by a container in it, and what is below logins, the cgroup of logins, by users.
func (h Hierarchy) FindUnits(names []string, logins string) (map[string]string, error) {
	found := map[string]string{}
	if len(names) == 0 {
		return found, nil
	}
	for below := []string{"/"}; len(below) > 0; {
		cg := below[0]
		below = below[1:]
		children, err := h.Children(cg)
		if errors.Is(err, ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, child := range children {
			name := path.Base(child)
			if child == LoginSlice || child == logins {
				continue
			}
			if slices.Contains(names, name) {
				found[name] = child
			}
			if strings.HasSuffix(name, ".slice") {
				below = append(below, child)
			}
		}
	}
	return found, nil
}
