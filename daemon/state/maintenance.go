package state

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/store"
)

// WireMaintenance is a maintenance in the form of the API; nil without one.
func WireMaintenance(m *store.Maintenance) *api.Maintenance {
	if m == nil {
		return nil
	}
	return &api.Maintenance{By: m.By, Since: m.Since, Reason: m.Reason, Driver: m.Driver, Parked: m.Parked, DriverVersion: m.DriverVersion}
}

// MaintenanceText says who closed the node to new leases, since when and why; empty if it takes leases.
func MaintenanceText(m *store.Maintenance) string {
	if m == nil {
		return ""
	}
	out := fmt.Sprintf("the node is in maintenance: %s closed it to new leases at %s", m.By, m.Since.Local().Format(time.DateTime))
	if m.Reason != "" {
		out += " (" + m.Reason + ")"
	}
	return out
}

// UsesDriver refuses a change that needs the driver while that is being replaced.
func (x *State) UsesDriver() error {
	m := x.Stored().Maintenance
	if m == nil || !m.Driver {
		return nil
	}
	return &api.Error{
		Kind: api.KindConflict, Message: "cannot change the node: " + MaintenanceText(m) + ", and its driver is being replaced",
		Hint: "nothing was changed; 'gpushare maintenance off' ends it",
	}
}
