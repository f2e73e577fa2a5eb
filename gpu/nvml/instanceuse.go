//go:build cgo

package nvml

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// useSample are the counters of a GPU instance at one time, in a buffer of the library.
type useSample struct {
	sample nvml.GpmSample
	at     time.Time
}

// InstanceUse implements gpu.Driver. The buffers are this process's own: none of them keeps an instance from being destroyed.
func (d *Driver) InstanceUse(ctx context.Context, id gpu.UUID, instances []uint32) ([]gpu.InstanceUse, error) {
	const op = "read the utilisation of instances"
	if !d.symbols.has(instanceUse) {
		return nil, refuse(op, id, gpu.ErrMissing)
	}
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer v.mu.Unlock()
	d.dropUse(v, instances)
	if v.countsUse == nil {
		support, ret := v.handle.GpmQueryDeviceSupport()
		if ret != nvml.SUCCESS {
			return nil, v.failed(op, ret)
		}
		v.countsUse = new(support.IsSupportedDevice != 0)
	}
	if !*v.countsUse {
		return nil, refuse(op, id, gpu.ErrNotSupported)
	}
	var out []gpu.InstanceUse
	var failed nvml.Return
	for _, gi := range instances {
		if err := ctx.Err(); err != nil {
			return nil, refuse(op, id, fmt.Errorf("%w: %w", gpu.ErrTimeout, err))
		}
		u, ret := d.useOf(v, gi)
		switch {
		case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INVALID_ARGUMENT: // It was destroyed.
		case ret != nvml.SUCCESS:
			failed = ret // The others may have counters.
		case u != nil:
			out = append(out, *u)
		}
	}
	switch {
	case failed == nvml.SUCCESS, len(out) > 0:
	case failed == nvml.ERROR_NOT_SUPPORTED: // The board counts, as it said: only ErrNotSupported is final.
		return nil, &gpu.Error{Op: op, GPU: id, Code: int(failed), Err: gpu.ErrUnknown}
	default:
		return nil, v.failed(op, failed)
	}
	return out, nil
}

// useOf takes a sample of an instance and compares it with the one before; nil if there is none, or it is too near.
func (d *Driver) useOf(v *device, gi uint32) (*gpu.InstanceUse, nvml.Return) {
	was, ok := v.use[gi]
	now := time.Now()
	if ok && now.Sub(was.at) < gpu.LeastUse {
		return nil, nvml.SUCCESS
	}
	sample, ret := d.lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if ret = v.handle.GpmMigSampleGet(int(gi), sample); ret != nvml.SUCCESS {
		_ = d.lib.GpmSampleFree(sample) // What failed is returned.
		d.freeUse(v, gi)
		return nil, ret
	}
	now = time.Now()
	var out *gpu.InstanceUse
	if ok && now.Sub(was.at) <= gpu.MostUse {
		out, ret = d.compareUse(was.sample, sample)
		if out != nil {
			out.GI, out.Length = gi, now.Sub(was.at)
		}
	}
	d.freeUse(v, gi)
	if v.use == nil {
		v.use = map[uint32]useSample{}
	}
	v.use[gi] = useSample{sample, now}
	return out, ret
}

// compareUse returns what was used between two samples; nil if the library does not say.
func (d *Driver) compareUse(from, to nvml.GpmSample) (*gpu.InstanceUse, nvml.Return) {
	get := nvml.GpmMetricsGetType{NumMetrics: 3, Sample1: from, Sample2: to}
	for i, id := range []nvml.GpmMetricId{nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_DRAM_BW_UTIL} {
		get.Metrics[i].MetricId = uint32(id)
	}
	if ret := d.lib.GpmMetricsGet(&get); ret != nvml.SUCCESS {
		return nil, ret
	}
	value := func(i int) *float64 {
		if m := &get.Metrics[i]; nvml.Return(m.NvmlReturn) == nvml.SUCCESS {
			return gpu.Percentage(m.Value)
		}
		return nil
	}
	return &gpu.InstanceUse{Busy: value(0), SM: value(1), Memory: value(2)}, nvml.SUCCESS
}

// dropUse frees the samples of instances that are not asked for any more, or of whose change the driver reported since: another one may
// have the same number.
func (d *Driver) dropUse(v *device, instances []uint32) {
	d.mu.Lock()
	replaced := v.replaced
	v.replaced = nil
	d.mu.Unlock()
	for gi := range v.use {
		if !slices.Contains(instances, gi) || slices.Contains(replaced, gi) || slices.Contains(replaced, noInstance) {
			d.freeUse(v, gi)
		}
	}
}

// freeUse frees the sample of an instance, if there is one.
func (d *Driver) freeUse(v *device, gi uint32) {
	if s, ok := v.use[gi]; ok {
		delete(v.use, gi)
		_ = d.lib.GpmSampleFree(s.sample) // It is not used again, also if that fails.
	}
}

// noteReplaced records that an instance of a GPU was created or destroyed; noInstance: any of them.
func (d *Driver) noteReplaced(id gpu.UUID, gi *uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.devices[id]
	if v == nil || slices.Contains(v.replaced, noInstance) {
		return
	}
	switch {
	case gi == nil:
		v.replaced = []uint32{noInstance}
	case !slices.Contains(v.replaced, *gi):
		v.replaced = append(v.replaced, *gi)
	}
}
