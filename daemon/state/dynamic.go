package state

import (
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// KindDynamic is the kind of change that makes instances for requests, and takes away those that nobody needs.
const KindDynamic = "dynamic"

// Keep is how long an instance that nobody needs stays on a GPU.
func (d *Desired) Keep(id gpu.UUID) time.Duration {
	if e := d.GPUs[id]; e != nil && e.MIG != nil && e.MIG.Keep != nil {
		return time.Duration(*e.MIG.Keep)
	}
	return time.Duration(api.DefaultKeep)
}

// AnyDynamic tells whether instances are made on demand anywhere.
func (d *Desired) AnyDynamic() bool {
	for id := range d.GPUs {
		if d.Dynamic(id) {
			return true
		}
	}
	return false
}
