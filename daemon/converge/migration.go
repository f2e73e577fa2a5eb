package converge

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/state"
)

// addMigrationConditions says where denying is asked for and not done.
func (cv *Converger) addMigrationConditions(want *state.Desired, lacks map[string]api.Condition) {
	if !want.Enforcing() || !want.DeniesMigration() {
		return
	}
	p := cv.Port.Abilities().Migration
	if p == nil {
		if !cv.Port.Info().Slices {
			lacks["migration"] = api.Condition{Message: "nobody is kept from leaving a lease on " + devicepolicy.AdapterText(cv.Port.Info()), Hint: "run gpushared as root on a host with cgroup v2"}
		}
		return
	}
	if is, err := p.MigrationDenied(); err != nil {
		lacks["migration"] = api.Condition{Message: "whether moving processes out of leases is denied cannot be seen: " + err.Error(), Hint: "it is detected all the same"}
	} else if !is && cv.State.Changing() == nil {
		lacks["migration"] = api.Condition{Message: "moving processes out of leases is not denied", Hint: "it is detected all the same; see the journal of gpushared for why"}
	}
}
