package planner

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// ProfileName is the name of a profile id of this device.
func ProfileName(ps *gpu.Profiles, id uint32) string {
	if ps != nil {
		for i := range ps.GI {
			if ps.GI[i].ID == id {
				return ps.GI[i].Name
			}
		}
	}
	return fmt.Sprintf("profile %d", id)
}
