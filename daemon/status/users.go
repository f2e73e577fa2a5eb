package status

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/text"
)

// users returns what each user with a lease has, and what they may have.
func (v *Viewer) users() []api.UserStatus {
	limit := v.Table.PerUser()
	var out []api.UserStatus
	for _, u := range v.Table.Users() {
		s := api.UserStatus{
			User:      u.User,
			UID:       u.UID,
			Leases:    u.Leases,
			MaxLeases: limit.Leases,
			GPUMemory: api.UserMemory{Granted: u.Memory, Limit: limit.Memory},
		}
		if s.User == "" || s.User == names.UIDLabel(u.UID) {
			s.User = v.Identities.Names.UserName(u.UID) // The name may be known by now.
		}
		out = append(out, s)
	}
	return out
}

// perUserText describes what a user has of each limit; empty without a limit.
func perUserText(u *api.UserStatus) string {
	var parts []string
	if u.MaxLeases > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s", u.Leases, text.Count(u.MaxLeases, "lease")))
	}
	if u.GPUMemory.Limit > 0 {
		parts = append(
			parts, fmt.Sprintf("%s of %s of GPU memory", api.Bytes(u.GPUMemory.Granted).Short(), api.Bytes(u.GPUMemory.Limit).Short()),
		)
	}
	return strings.Join(parts, ", ")
}

// perUserLimits describes the limits.
func perUserLimits(p *api.PerUserSpec) string {
	var parts []string
	if p.Leases != nil {
		parts = append(parts, text.Count(*p.Leases, "lease"))
	}
	if p.GPUMemory != nil {
		parts = append(parts, p.GPUMemory.Short()+" of GPU memory")
	}
	return strings.Join(parts, " and ")
}
