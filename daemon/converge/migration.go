package converge

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/state"
)

// addMigrationConditions reports when isolation.migration: deny is not enforced.
func (cv *Converger) addMigrationConditions(want *state.Desired, conditions map[string]api.Condition) {
	if !want.Enforcing() || !want.DeniesMigration() {
		return
	}
	p := cv.Port.Abilities().Migration
	if p == nil {
		if !cv.Port.Info().Slices {
			conditions["migration"] = api.Condition{
				Message: "processes can leave a lease on " + devicepolicy.AdapterText(cv.Port.Info()),
				Hint:    "run gpushared as root on a host with cgroup v2",
			}
		}
		return
	}
	if is, err := p.MigrationDenied(); err != nil {
		conditions["migration"] = api.Condition{
			Message: "cannot read whether moving processes out of leases is denied: " + err.Error(),
			Hint:    "it is detected nevertheless",
		}
	} else if !is && cv.State.Changing() == nil {
		conditions["migration"] = api.Condition{
			Message: "moving processes out of leases is not denied",
			Hint:    "it is detected nevertheless; see the journal of gpushared for the reason",
		}
	}
}
