//go:build cgo

package nvml

// #include "shim.h"
import "C"

import (
	"cmp"
	"context"
	"math"
	"slices"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// UtilizationSeries implements gpu.Driver.
func (d *Driver) UtilizationSeries(ctx context.Context, id gpu.UUID, since uint64) (gpu.Series, error) {
	const op = "read the utilisation series"
	none := gpu.Series{Newest: since}
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return none, err
	}
	defer v.mu.Unlock()
	raw, ret := address(v.handle)
	_, fn := d.symbols.call("nvmlDeviceGetSamples")
	if ret == nvml.SUCCESS && fn == nil {
		ret = nvml.ERROR_FUNCTION_NOT_FOUND
	}
	if ret != nvml.SUCCESS {
		return none, v.failed(op, ret)
	}
	samples, ret := listSeries(fn, raw, since)
	if ret != nvml.SUCCESS {
		return none, v.failed(op, ret)
	}
	return series(samples, since), nil
}

// initialSeries is the buffer size of the first call, in samples: drivers keep about 100.
const initialSeries = 256

// listSeries calls nvmlDeviceGetSamples. It is not an error if there are no samples. The wrapper of go-nvml calls twice,
// first for the size, and does not shorten its result when the second call wrote less.
func listSeries(fn, device unsafe.Pointer, since uint64) ([]gpu.SeriesSample, nvml.Return) {
	capacity := C.uint32_t(initialSeries)
	for range 6 {
		count, kind := capacity, C.int(nvml.VALUE_TYPE_UNSIGNED_INT)
		values := make([]C.gpushare_value, capacity)
		ret := nvml.Return(C.gpushare_series(fn, device, C.uint64_t(since), &count, &kind, &values[0]))
		switch {
		case ret == nvml.ERROR_NOT_FOUND:
			return nil, nvml.SUCCESS
		case ret == nvml.SUCCESS && count < capacity:
			out := make([]gpu.SeriesSample, 0, count)
			for _, x := range values[:count] {
				percent, ok := sampleValue(nvml.ValueType(kind), uint64(x.bits))
				if !ok {
					return nil, nvml.ERROR_ARGUMENT_VERSION_MISMATCH
				}
				out = append(out, gpu.SeriesSample{Time: uint64(x.time), Percent: percent})
			}
			return out, ret
		case ret == nvml.SUCCESS || ret == nvml.ERROR_INSUFFICIENT_SIZE:
			// nvml.h does not say what happens with a buffer that is too small. A full one may lack the newest samples.
			capacity = 2 * max(count, capacity)
		default:
			return nil, ret
		}
	}
	return nil, nvml.ERROR_INSUFFICIENT_SIZE
}

// sampleValue reads the union nvmlValue_t. nvml.h documents unsigned int for utilisation.
func sampleValue(kind nvml.ValueType, bits uint64) (int, bool) {
	var v float64
	switch kind {
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		v = float64(int32(uint32(bits)))
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		v = float64(int64(bits))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		v = float64(uint16(bits))
	case nvml.VALUE_TYPE_DOUBLE:
		v = math.Float64frombits(bits)
	default:
		return 0, false
	}
	return int(max(-1, min(v, math.MaxInt32))), true
}

// series drops impossible samples and those that are not newer than since, and sorts the others by time.
func series(samples []gpu.SeriesSample, since uint64) gpu.Series {
	out := gpu.Series{Newest: since}
	for _, s := range samples {
		if s.Percent < 0 || s.Percent > 100 || s.Time <= since {
			continue
		}
		out.Samples = append(out.Samples, s)
		out.Newest = max(out.Newest, s.Time)
	}
	slices.SortStableFunc(out.Samples, func(a, b gpu.SeriesSample) int { return cmp.Compare(a.Time, b.Time) })
	return out
}
