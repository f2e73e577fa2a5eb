package closing

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/store"
)

// WireCordon is the form of the API for a GPU that an administrator closed; nil: none did.
func WireCordon(c *store.Closure) *api.Cordon {
	if c == nil {
		return nil
	}
	return &api.Cordon{By: c.By, Since: c.Since, Reason: c.Reason}
}

// WireDrain is the form of the API for an MPS that an administrator closed; nil: none did.
func WireDrain(c *store.Closure) *api.MPSDrain {
	if c == nil {
		return nil
	}
	return &api.MPSDrain{By: c.By, Since: c.Since}
}

// WireMaintenance is the form of the API for the maintenance of the node; nil without one.
func WireMaintenance(s *store.State) *api.Maintenance {
	c, driver := InMaintenance(s)
	if c == nil {
		return nil
	}
	return &api.Maintenance{
		By:            c.By,
		Since:         c.Since,
		Reason:        c.Reason,
		Driver:        driver.Driver,
		Parked:        driver.Parked,
		DriverVersion: driver.DriverVersion,
	}
}
