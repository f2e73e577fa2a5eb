package status

import (
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
)

// GetLeases lists leases; with the query all also those that ended recently, with since those that ended since then.
func (v *Viewer) GetLeases(c *server.Call) error {
	list := restrictTo(v.currentStatus().status, c.Caller).Leases
	since := c.Text("since")
	if c.Flag("all") {
		list = slices.Clone(list)
		for _, e := range v.Managers.Leases.EndedLeases() {
			if c.Caller.SeesLease(e.Tenant, e.UID) &&
				!slices.ContainsFunc(list, func(l api.Lease) bool { return l.Generation == e.Generation }) {
				list = append(list, e)
			}
		}
		if since == "" { // The account knows more of them. Without it the list is still complete.
			if ended, err := v.Managers.Account.EndedLeases(c.Ctx(), endedAge, c.Caller.SeesLease); err == nil {
				list = withEnded(list, ended, false)
			}
		}
	}
	if since != "" {
		ended, err := v.Managers.Account.EndedLeases(c.Ctx(), since, c.Caller.SeesLease)
		if err != nil {
			return err
		}
		list = withEnded(list, ended, true)
	}
	return c.Reply(http.StatusOK, api.LeaseList{SchemaVersion: 1, Leases: c.Caller.HideCommands(list)})
}

// endedAge is how long package leases keeps leases that ended, and a little more.
const endedAge = "25h"

// withEnded adds what the account knows of ended leases, and with others those that are not in the list. A lease may be in both lists:
// it has just ended, or it ended since the last boot. Generations are used again after a boot, and the account has no fractions of a
// millisecond.
func withEnded(list, ended []api.Lease, others bool) []api.Lease {
	type key struct {
		id      string
		created int64
	}
	at := map[key]int{}
	list = slices.Clone(list)
	for i := range list {
		at[key{list[i].ID, list[i].Created.UnixMilli()}] = i
	}
	for i := range ended {
		e := &ended[i]
		j, ok := at[key{e.ID, e.Created.UnixMilli()}]
		switch {
		case !ok && others:
			list = append(list, *e)
		case !ok:
		case list[j].State == api.LeaseEnded:
			l := &list[j]
			l.ElapsedSeconds = e.ElapsedSeconds
			if e.GPUMemory != nil {
				memory := api.LeaseMemory{}
				if l.GPUMemory != nil {
					memory = *l.GPUMemory
				}
				memory.Peak = e.GPUMemory.Peak
				l.GPUMemory = &memory
			}
		default: // The status was rendered before it ended.
			list[j] = *e
		}
	}
	return list
}
