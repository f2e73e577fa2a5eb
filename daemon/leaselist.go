package daemon

import (
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
)

// getLeases lists leases; with all also those that ended lately.
func (d *Viewer) getLeases(c *call) error {
	list := narrowTo(d.currentPage().status, c.caller).Leases
	if c.r.URL.Query().Has("all") {
		list = slices.Clone(list)
		for _, e := range d.told.leases.endedLeases() {
			if c.caller.sees(e.Tenant) && !slices.ContainsFunc(list, func(l api.Lease) bool { return l.Generation == e.Generation }) {
				list = append(list, e)
			}
		}
	}
	return c.reply(http.StatusOK, api.LeaseList{SchemaVersion: 1, Leases: list})
}
