package mps

import (
	"cmp"
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// Device is what one control daemon serves: a GPU, or one MIG instance of it. An instance is identified by its placement: one
// that is created later at the same placement may have the same UUID.
type Device struct {
	GPU      gpu.UUID
	Instance gpu.Placement // its size is 0 for the whole GPU
}

// Whole is a whole GPU.
func Whole(id gpu.UUID) Device { return Device{GPU: id} }

// IsInstance reports whether it is a MIG instance.
func (d Device) IsInstance() bool { return d.Instance.Size > 0 }

// String is its name in messages and logs.
func (d Device) String() string {
	if !d.IsInstance() {
		return string(d.GPU)
	}
	return fmt.Sprintf("the MIG instance at %d of %s", d.Instance.Start, d.GPU)
}

// Compare orders devices by GPU, the whole GPU before its instances.
func (d Device) Compare(o Device) int {
	return cmp.Or(cmp.Compare(d.GPU, o.GPU), cmp.Compare(d.Instance.Start, o.Instance.Start), cmp.Compare(d.Instance.Size, o.Instance.Size))
}

// Name is its name in paths and units.
func (d Device) Name() string {
	if !d.IsInstance() {
		return shortID(d.GPU)
	}
	return fmt.Sprintf("%s-%d-%d", shortID(d.GPU), d.Instance.Start, d.Instance.Size)
}
