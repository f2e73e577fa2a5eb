//go:build cgo

package nvml

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// noLimit is the driver's value for "no hard limit".
const noLimit = uint64(nvml.DEVICE_MEMORY_LIMIT_MAX)

// SetMemoryLimit implements gpu.Driver.
func (d *Driver) SetMemoryLimit(ctx context.Context, id gpu.UUID, cgroup string, hard *uint64) error {
	const op = "set the memory limit"
	v, err := d.limited(ctx, op, id)
	if err != nil {
		return err
	}
	defer v.mu.Unlock()
	limit := noLimit
	if hard != nil {
		limit = *hard
	}
	return limitFailed(v, op, cgroup, v.handle.SetMemoryLimits_v1(cgroup, 0, limit))
}

// MemoryLimit implements gpu.Driver.
func (d *Driver) MemoryLimit(ctx context.Context, id gpu.UUID, cgroup string) (gpu.MemoryLimit, error) {
	const op = "read the memory limit"
	v, err := d.limited(ctx, op, id)
	if err != nil {
		return gpu.MemoryLimit{}, err
	}
	defer v.mu.Unlock()
	is, ret := v.handle.GetMemoryLimits_v1(cgroup)
	if ret != nvml.SUCCESS {
		return gpu.MemoryLimit{}, limitFailed(v, op, cgroup, ret)
	}
	out := gpu.MemoryLimit{Used: is.CurrentUsed}
	if is.HardLimit != noLimit {
		out.Hard = &is.HardLimit
	}
	return out, nil
}

// limited locks a GPU for a call on its limits. The binding ends the process if the library lacks the function.
func (d *Driver) limited(ctx context.Context, op string, id gpu.UUID) (*device, error) {
	if !d.symbols.has(memoryLimits) {
		return nil, refuse(op, id, gpu.ErrMissing)
	}
	return d.lockDevice(ctx, op, id)
}

// limitFailed returns the error of a call on a limit; nil for success.
func limitFailed(v *device, op, cgroup string, ret nvml.Return) error {
	if ret == nvml.ERROR_OPERATING_SYSTEM {
		return &gpu.Error{
			Op:   op,
			GPU:  v.id,
			Code: int(ret),
			Err:  fmt.Errorf("%w: the driver cannot open the cgroup %s", gpu.ErrInvalid, cgroup),
		}
	}
	return v.failed(op, ret)
}
