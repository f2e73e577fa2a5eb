package lease

import (
	"math"
	"slices"

	"github.com/gpushare/gpushare/api"
)

// Memory that is used and in no process is managed memory of a lease, of a process that does not exit, or was not freed by the driver.
// As much of it as live leases were granted may be theirs and ends with them. No lease gets the rest.

// inNoProcess is how much memory of it, in bytes, is used and in no process.
func (v *divisible) inNoProcess() uint64 {
	if v.instance == nil {
		return v.gpu.InNoProcess
	}
	return v.instance.InNoProcess
}

// unfree is the memory that is used and in no process, without what live leases were granted.
func (t *gpuUsage) unfree(dev *divisible) uint64 {
	var live uint64
	for _, s := range t.shares {
		if s.leases > 0 {
			live += s.memory
		}
	}
	return dev.inNoProcess() - min(live, dev.inNoProcess())
}

// memoryInNoProcess is why no lease may have a place alone although none has it: a part of its memory is used and in no process.
func (h *occupant) memoryInNoProcess(bytes uint64) string {
	if bytes == 0 || h.inUse() {
		return ""
	}
	return api.Bytes(bytes).Short() + " of its memory are used, and in no process"
}

// withoutMemoryOf takes the memory in no process that may be of a lease from the place that it has: it ends with the lease. It changes
// a copy of the instances.
func (v *View) withoutMemoryOf(e *entry) {
	granted := uint64(math.MaxUint64) // It has all of the place.
	if e.Terms.share() != nil {
		granted = e.Memory()
	}
	for _, id := range e.Place.GPUs {
		d := v.gpu(id)
		switch {
		case d == nil:
		case e.Place.Instance == nil:
			d.InNoProcess -= min(granted, d.InNoProcess)
		default:
			d.Instances = slices.Clone(d.Instances)
			for i := range d.Instances {
				if in := &d.Instances[i]; in.Placement == *e.Place.Instance {
					in.InNoProcess -= min(granted, in.InNoProcess)
				}
			}
		}
	}
}
