package converge

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// noProcess is the memory of GPUs that is in no process: managed memory, a process that does not exit, memory that the driver has not
// freed. Memory and processes are read one after the other, so what counts is the lower value of two observations.
type noProcess struct {
	mu   locks.Mutex[locks.Leaf] // protects all
	seq  uint64                  // of the newest observation
	last map[store.Where]uint64  // of it
	both map[store.Where]uint64  // of it and of the one before
}

// observe takes an observation, each once, and returns the memory by GPU and by MIG instance. The result is read-only.
func (x *noProcess) observe(node *observe.Node) map[store.Where]uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.last != nil && x.seq == node.Seq || node.DriverErr != nil {
		return x.both
	}
	now, both := map[store.Where]uint64{}, map[store.Where]uint64{}
	note := func(at store.Where, bytes uint64, ok bool) {
		if !ok || bytes < quota.UnattributedLarge {
			return
		}
		now[at] = bytes
		if was := x.last[at]; was > 0 {
			both[at] = min(bytes, was)
		}
	}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.Err != nil {
			continue
		}
		bytes, ok := quota.Unattributed(&g.Snapshot)
		note(store.Where{GPU: g.Identity.UUID}, bytes, ok)
		for j := range g.Instances {
			in := &g.Instances[j]
			bytes, ok := quota.UnattributedIn(&g.Snapshot, in)
			note(store.Where{GPU: g.Identity.UUID, Instance: in.Placement}, bytes, ok)
		}
	}
	x.seq, x.last, x.both = node.Seq, now, both
	return both
}

// leasesAt are the live leases with a place on a GPU, or in an instance of it.
func leasesAt(all []lease.Lease, at store.Where) (on []lease.Lease) {
	for i := range all {
		p := &all[i].Place
		if slices.Contains(p.GPUs, at.GPU) && (at.Instance.Size == 0 || p.Instance != nil && *p.Instance == at.Instance) {
			on = append(on, all[i])
		}
	}
	return on
}

// updateNoProcess reports that memory, with the only lease that it may belong to.
func (cv *Converger) updateNoProcess(node *observe.Node) {
	out := map[string]api.Condition{}
	live, bytes := cv.Table.Live(), cv.State.InNoProcess()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if !cv.State.Desired().Manages(id) {
			continue
		}
		if n := bytes[store.Where{GPU: id}]; n > 0 {
			out[string(id)] = cv.inNoProcess(g, nil, n, leasesAt(live, store.Where{GPU: id}))
		}
		for j := range g.Instances {
			in := &g.Instances[j]
			at := store.Where{GPU: id, Instance: in.Placement}
			if n := bytes[at]; n > 0 {
				out[fmt.Sprintf("%s at %d", id, in.Placement.Start)] = cv.inNoProcess(g, in, n, leasesAt(live, at))
			}
		}
	}
	cv.Conditions.Replace("memory-in-no-process", out)
}

// inNoProcess is the condition of a GPU, or of an instance of it, with the leases there.
func (cv *Converger) inNoProcess(g *observe.GPU, in *gpu.Instance, bytes uint64, on []lease.Lease) api.Condition {
	id := g.Identity
	what, name := "the GPU", id.Name()
	if in != nil {
		what, name = "the instance", fmt.Sprintf("%s at %d on %s", g.Profiles.GIName(in.ProfileID), in.Placement.Start, id.Name())
	}
	c := api.Condition{
		GPU:     string(id.UUID),
		Message: fmt.Sprintf("%s: %s of its memory are used, and in no process that the driver lists", name, api.Bytes(bytes).Short()),
	}
	switch len(on) {
	case 0:
		c.Message += fmt.Sprintf("; no lease has %s: a process that does not exit, or memory that the driver has not freed. ", what)
		if cv.isShared(g, in) {
			c.Message += "New leases get what is left"
		} else {
			c.Message += fmt.Sprintf("New leases do not get %s until it is free", what)
		}
		c.Hint = fmt.Sprintf(
			"processes that do not exit have the state D or Z in 'ps -eo pid,stat,comm'; without one, reset the GPU: %s",
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
	return c
}

// isShared reports whether leases have shares of a GPU, or of an instance of it.
func (cv *Converger) isShared(g *observe.GPU, in *gpu.Instance) bool {
	want, id := cv.State.Desired(), g.Identity.UUID
	if in == nil {
		return want.Mode(id) != api.ModeExclusive
	}
	return want.SharesInstances(id, g.Profiles, g.Profiles.GIName(in.ProfileID))
}
