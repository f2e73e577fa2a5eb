//go:build cgo

package nvml

import (
	"context"
	"log/slog"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpushare/gpushare/gpu"
)

// A sample is freed when it cannot be read, when it is replaced, and when its instance is not asked for any more; a metric that fails or
// is no percentage is not known, and one of another instance with the same number is not compared.
func TestInstanceUseFreesItsSamples(t *testing.T) {
	allocated, freed := 0, 0
	ret, value := nvml.SUCCESS, 40.0
	lib := &mock.Interface{
		GpmSampleAllocFunc: func() (nvml.GpmSample, nvml.Return) { allocated++; return nil, nvml.SUCCESS },
		GpmSampleFreeFunc:  func(nvml.GpmSample) nvml.Return { freed++; return nvml.SUCCESS },
		GpmMetricsGetFunc: func(get *nvml.GpmMetricsGetType) nvml.Return {
			if get.NumMetrics != 3 || get.Metrics[0].MetricId != 1 || get.Metrics[1].MetricId != 2 || get.Metrics[2].MetricId != 10 {
				t.Errorf("the metrics are %+v", get.Metrics[:3])
			}
			get.Metrics[0].Value, get.Metrics[1].Value = value, 700
			get.Metrics[2].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			return nvml.SUCCESS
		},
	}
	queries := 0
	handle := &mock.Device{
		GpmMigSampleGetFunc: func(int, nvml.GpmSample) nvml.Return { return ret },
		GpmQueryDeviceSupportFunc: func() (nvml.GpmSupport, nvml.Return) {
			queries++
			return nvml.GpmSupport{IsSupportedDevice: 1}, nvml.SUCCESS
		},
	}
	const id = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")
	v := &device{id: id, handle: handle}
	d := &Driver{
		o: options{log: slog.New(slog.DiscardHandler)}, lib: lib, symbols: everySymbol(t), devices: map[gpu.UUID]*device{id: v},
	}
	read := func(instances ...uint32) []gpu.InstanceUse {
		t.Helper()
		for gi, s := range v.use { // The samples are of a while ago.
			s.at = s.at.Add(-gpu.LeastUse)
			v.use[gi] = s
		}
		out, err := d.InstanceUse(t.Context(), id, instances)
		if err != nil {
			t.Fatal(err)
		}
		if allocated-freed != len(v.use) {
			t.Errorf("%d samples were allocated and %d freed, and %d are kept", allocated, freed, len(v.use))
		}
		return out
	}
	if got := read(1, 2); len(got) != 0 || len(v.use) != 2 {
		t.Errorf("at first: %+v", got)
	}
	if got := read(1, 2); len(got) != 2 || got[0].Busy == nil || *got[0].Busy != 40 || got[0].SM != nil || got[0].Memory != nil {
		t.Errorf("then: %+v", got)
	}
	d.noteReplaced(id, new(uint32(2)))
	if got := read(1, 2); len(got) != 1 || got[0].GI != 1 {
		t.Errorf("one was replaced: %+v", got)
	}
	d.noteReplaced(id, nil)
	if got := read(1, 2); len(got) != 0 {
		t.Errorf("any may have been replaced: %+v", got)
	}
	ret = nvml.ERROR_NOT_FOUND
	if got := read(1, 2); len(got) != 0 || len(v.use) != 0 {
		t.Errorf("both were destroyed: %+v", got)
	}
	ret = nvml.SUCCESS
	read(1)
	if got := read(); len(got) != 0 || len(v.use) != 0 {
		t.Errorf("none is asked for: %+v", got)
	}
	if queries != 1 {
		t.Errorf("whether the GPU counts was read %d times", queries)
	}
	ret = nvml.ERROR_NO_PERMISSION
	if _, err := d.InstanceUse(t.Context(), id, []uint32{1}); !gpu.IsAny(err, gpu.ErrDenied) || allocated != freed {
		t.Errorf("refused: %v, %d samples were allocated and %d freed", err, allocated, freed)
	}
}

// That one instance has no counters now is no answer of the board: it may be asked again.
func TestAnInstanceWithoutCountersIsNoAnswerOfTheBoard(t *testing.T) {
	const id = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")
	supported := uint32(1)
	lib := &mock.Interface{
		GpmSampleAllocFunc: func() (nvml.GpmSample, nvml.Return) { return nil, nvml.SUCCESS },
		GpmSampleFreeFunc:  func(nvml.GpmSample) nvml.Return { return nvml.SUCCESS },
	}
	handle := &mock.Device{
		GpmMigSampleGetFunc: func(int, nvml.GpmSample) nvml.Return { return nvml.ERROR_NOT_SUPPORTED },
		GpmQueryDeviceSupportFunc: func() (nvml.GpmSupport, nvml.Return) {
			return nvml.GpmSupport{IsSupportedDevice: supported}, nvml.SUCCESS
		},
	}
	for supported = range 2 {
		d := &Driver{
			o: options{log: slog.New(slog.DiscardHandler)}, lib: lib, symbols: everySymbol(t),
			devices: map[gpu.UUID]*device{id: {id: id, handle: handle}},
		}
		_, err := d.InstanceUse(t.Context(), id, []uint32{1})
		if err == nil || gpu.IsAny(err, gpu.ErrNotSupported) != (supported == 0) {
			t.Errorf("the board says %d: %v", supported, err)
		}
	}
}

// When the events are watched again, instances may have been replaced meanwhile: no sample from before is compared.
func TestWithoutEventsSamplesAreNotCompared(t *testing.T) {
	const id = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")
	ctx, cancel := context.WithCancel(t.Context())
	handle := &mock.Device{
		GetUUIDFunc:                func() (string, nvml.Return) { return string(id), nvml.SUCCESS },
		GetSupportedEventTypesFunc: func() (uint64, nvml.Return) { return eventMIGConfig, nvml.SUCCESS },
		RegisterEventsFunc:         func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS },
	}
	set := &mock.EventSet{
		FreeFunc: func() nvml.Return { return nvml.SUCCESS },
		WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
			cancel()
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		},
	}
	lib := &mock.Interface{
		EventSetCreateFunc:         func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return handle, nvml.SUCCESS },
	}
	v := &device{id: id, handle: handle}
	d := &Driver{
		o: options{
			log:      slog.New(slog.DiscardHandler),
			hostRoot: t.TempDir(),
		},
		lib:     lib,
		symbols: everySymbol(t),
		devices: map[gpu.UUID]*device{id: v},
	}
	if ret := d.watch(ctx, func(gpu.Event) {}); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if len(v.replaced) != 1 || v.replaced[0] != noInstance {
		t.Errorf("replaced are %v", v.replaced)
	}
}
