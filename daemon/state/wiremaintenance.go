package state

import (
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
