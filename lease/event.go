package lease

import "github.com/gpushare/gpushare/api"

// Event returns an event about the lease and the first of its GPUs.
func (l *Lease) Event(kind, message string) api.Event {
	e := api.Event{Kind: kind, Tenant: l.Terms.Tenant, Lease: l.ID, User: l.User, Message: message}
	if len(l.Place.GPUs) > 0 {
		e.GPU = string(l.Place.GPUs[0])
	}
	return e
}
