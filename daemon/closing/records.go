package closing

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/store"
)

// CloseHeld closes a GPU on which a change of a spec failed. boot is empty unless it waits for a boot.
func CloseHeld(s *store.State, id gpu.UUID, generation uint64, reason, boot string, at time.Time) {
	Held.Close(s, store.Closure{
		Where:  OnGPU(id),
		Since:  at,
		Reason: reason,
		Held:   &store.HeldRecord{Generation: generation, Boot: boot},
	})
}

// AwaitedBoot is the boot in which a held GPU waits for the next one; empty: it waits for none.
func AwaitedBoot(s *store.State, id gpu.UUID) string {
	if c := Held.At(s, OnGPU(id)); c != nil && c.Held != nil {
		return c.Held.Boot
	}
	return ""
}

// Health is the record of a GPU; the zero value if it has no trouble of its own.
func Health(s *store.State, id gpu.UUID) health.Record { return healthOf(Unhealthy.At(s, OnGPU(id))) }

func healthOf(c *store.Closure) health.Record {
	if c == nil || c.Health == nil {
		return health.Record{}
	}
	h := c.Health
	return health.Record{
		State:  h.State,
		Since:  c.Since,
		XID:    h.XID,
		Cause:  c.Reason,
		Failed: h.Failed,
		Boot:   h.Boot,
		Driver: h.Driver,
		Bad:    h.Bad,
		Lost:   h.Lost,
	}
}

// SetHealth closes a GPU for its record, or opens it.
func SetHealth(s *store.State, id gpu.UUID, r health.Record) {
	if r.Open() {
		Unhealthy.Open(s, OnGPU(id))
		return
	}
	Unhealthy.Close(s, store.Closure{Where: OnGPU(id), Since: r.Since, Reason: r.Cause, Health: &store.HealthRecord{
		State: r.State, XID: r.XID, Failed: r.Failed, Boot: r.Boot, Driver: r.Driver, Bad: r.Bad, Lost: r.Lost,
	}})
}

// InMaintenance is the maintenance of the node, with what the driver was then; nil: there is none.
func InMaintenance(s *store.State) (c *store.Closure, driver store.MaintenanceRecord) {
	if c = Maintenance.At(s, store.Where{}); c != nil && c.Maintenance != nil {
		driver = *c.Maintenance
	}
	return c, driver
}
