package daemon

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/internal/store"
)

// assumeProfiles returns the MIG profiles of a GPU whose driver reports none while MIG mode is off; nil when none are known.
// What this version of the driver reported for the model comes first, then the published ones of the board, then what another
// version reported. A plan made with them compares them with those of the driver once MIG mode is on.
func (d *Daemon) assumeProfiles(id gpu.Identity, driver string) *gpu.Profiles {
	recorded, known := d.state.Stored().Profiles[id.Model]
	if known && recorded.Driver == driver {
		return &recorded.Profiles
	}
	if b := board.ByModel(id.Model); b != nil && b.Grid > 0 {
		return new(b.GPUProfilesOf(driver))
	}
	if known {
		return &recorded.Profiles
	}
	return nil
}

// reportProfiles records the profiles of a driver that differ from those of a plan.
func (d *Daemon) reportProfiles(id gpu.UUID, p gpu.Profiles) {
	node := d.observer.Last()
	g, ok := node.GPU(id)
	if !ok {
		return
	}
	r := store.ReportedProfiles{Driver: node.Driver.DriverVersion, Profiles: p}
	if err := d.state.RecordProfiles(map[string]store.ReportedProfiles{g.Identity.Model: r}); err != nil {
		d.Log.Error("cannot record the MIG profiles of a GPU", "gpu", id, "error", err)
	}
}
