package converge

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// noProcess is the memory of GPUs that is in no process: managed memory, a process that does not exit, memory that the driver has not
// freed. Memory and processes are read one after the other, so what counts is the lower value of two observations.
type noProcess struct {
	mu   locks.Mutex[locks.Leaf] // protects all
	seq  uint64                  // of the newest observation
	last map[gpu.UUID]uint64     // of it
	both map[gpu.UUID]uint64     // of it and of the one before
}

// observe takes an observation, each once.
func (x *noProcess) observe(node *observe.Node) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.last != nil && x.seq == node.Seq || node.DriverErr != nil {
		return
	}
	now, both := map[gpu.UUID]uint64{}, map[gpu.UUID]uint64{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		bytes, ok := quota.Unattributed(&g.Snapshot)
		if !ok || g.Err != nil || bytes < quota.UnattributedLarge {
			continue
		}
		now[g.Identity.UUID] = bytes
		if was := x.last[g.Identity.UUID]; was > 0 {
			both[g.Identity.UUID] = min(bytes, was)
		}
	}
	x.seq, x.last, x.both = node.Seq, now, both
}

func (x *noProcess) of(id gpu.UUID) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.both[id]
}

// leasesOn are the live leases with a place on a GPU.
func leasesOn(all []lease.Lease, id gpu.UUID) (on []lease.Lease) {
	for i := range all {
		if slices.Contains(all[i].Place.GPUs, id) {
			on = append(on, all[i])
		}
	}
	return on
}

// describeNoProcess adds to the view what leases cannot get of each GPU, because it is used and in no process.
func (cv *Converger) describeNoProcess(v *lease.View, node *observe.Node) {
	cv.NoProcess.observe(node)
	live := cv.Table.Live()
	for i := range v.GPUs {
		d := &v.GPUs[i]
		d.InNoProcess = cv.NoProcess.of(d.UUID)
		if d.InNoProcess > 0 && d.Mode == api.ModeExclusive && d.Occupied == "" && len(leasesOn(live, d.UUID)) == 0 {
			d.Occupied = api.Bytes(d.InNoProcess).Short() + " of its memory are used, and in no process"
		}
	}
}

// updateNoProcess reports that memory, with the only lease that it may belong to.
func (cv *Converger) updateNoProcess(node *observe.Node) {
	out := map[string]api.Condition{}
	live := cv.Table.Live()
	for i := range node.GPUs {
		id := node.GPUs[i].Identity
		bytes := cv.NoProcess.of(id.UUID)
		if bytes == 0 || !cv.State.Desired().Manages(id.UUID) {
			continue
		}
		c := api.Condition{
			GPU: string(id.UUID),
			Message: fmt.Sprintf(
				"%s: %s of its memory are used, and in no process that the driver lists", id.Name(), api.Bytes(bytes).Short(),
			),
		}
		switch on := leasesOn(live, id.UUID); len(on) {
		case 0:
			c.Message += "; no lease has the GPU: a process that does not exit, or memory that the driver has not freed. "
			if cv.State.Desired().Mode(id.UUID) == api.ModeExclusive {
				c.Message += "New leases do not get the GPU until it is free"
			} else {
				c.Message += "New leases get what is left"
			}
			c.Hint = fmt.Sprintf(
				"processes that do not exit have the state D or Z in 'ps -eo pid,stat,comm'; without one, reset it: %s",
				gpu.ResetCommands(fmt.Sprint(id.Index)),
			)
		case 1:
			c.Tenant = on[0].Terms.Tenant
			c.Message += "; " + on[0].ID + " is the only lease on it: it may be its managed memory"
			c.Hint = fmt.Sprintf("its end frees it: 'gpushare lease stop %s'; memory that is still used then is of no lease", on[0].ID)
		default:
			c.Message += fmt.Sprintf("; it may be managed memory of one of %d leases", len(on))
			c.Hint = "'gpushare lease list' has them; the driver does not say whose it is, and no lease is stopped because of it"
		}
		out[string(id.UUID)] = c
	}
	cv.Conditions.Replace("memory-in-no-process", out)
}
