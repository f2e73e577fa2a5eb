package state

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
)

// UsesDriver refuses a change that needs the driver while that is being replaced.
func (x *State) UsesDriver() error {
	m, driver := closing.InMaintenance(x.Stored())
	if m == nil || !driver.Driver {
		return nil
	}
	return &api.Error{
		Kind: api.KindConflict, Message: "cannot change the node: " + closing.MaintenanceText(m) + ", and its driver is being replaced",
		Hint: "nothing was changed; 'gpushare maintenance off' ends it",
	}
}
