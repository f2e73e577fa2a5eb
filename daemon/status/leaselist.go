package status

import (
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
)

// GetLeases lists leases; with the query all also those that ended recently.
func (v *Viewer) GetLeases(c *server.Call) error {
	list := restrictTo(v.currentStatus().status, c.Caller).Leases
	if c.R.URL.Query().Has("all") {
		list = slices.Clone(list)
		for _, e := range v.Managers.Leases.EndedLeases() {
			if c.Caller.Sees(e.Tenant) && !slices.ContainsFunc(list, func(l api.Lease) bool { return l.Generation == e.Generation }) {
				list = append(list, e)
			}
		}
	}
	return c.Reply(http.StatusOK, api.LeaseList{SchemaVersion: 1, Leases: list})
}
