//go:build cgo

package nvml

import (
	"context"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

const (
	// eventWait is the duration of one wait inside the library. The end of the context is noticed after it.
	eventWait = 500 * time.Millisecond
	// eventRetries is how many consecutive waits may fail before Events returns.
	eventRetries = 5
	// eventPause is the pause after a wait that failed.
	eventPause = time.Second
	// eventMIGConfig is nvmlEventMigConfigChange of nvml.h.
	eventMIGConfig = 0x100
)

// eventKinds maps the library's event types to gpu.EventKind. Other types are not registered.
func eventKinds() []struct {
	mask uint64
	kind gpu.EventKind
} {
	return []struct {
		mask uint64
		kind gpu.EventKind
	}{
		{nvml.EventTypeXidCriticalError, gpu.EventXID},
		{eventMIGConfig, gpu.EventMIGConfig},
		{nvml.EventTypeDoubleBitEccError | nvml.EventTypeSingleBitEccErrorStorm | nvml.EventTypeDramRetirementEvent |
			nvml.EventTypeDramRetirementFailure | nvml.EventTypeNonFatalPoisonError | nvml.EventTypeFatalPoisonError, gpu.EventECC},
		{nvml.EventTypeGpuUnavailableError, gpu.EventLost},
	}
}

// eventKind maps an event type of the library. ok is false for types that were not registered.
func eventKind(mask uint64) (kind gpu.EventKind, ok bool) {
	for _, k := range eventKinds() {
		if mask&k.mask != 0 {
			return k.kind, true
		}
	}
	return "", false
}

// Events implements gpu.Driver. A failed wait says nothing about a GPU: the event set is created again, and the error is
// returned after several consecutive failures.
func (d *Driver) Events(ctx context.Context, f func(gpu.Event)) error {
	const op = "watch events"
	if !d.symbols.has(events) {
		return refuse(op, "", gpu.ErrMissing)
	}
	for failures := 0; ; {
		ret := d.watch(ctx, func(e gpu.Event) {
			if e.Kind != gpu.EventWatching { // The wait that follows may fail.
				failures = 0
			}
			f(e)
		})
		if err := ctx.Err(); err != nil {
			return refuse(op, "", err)
		}
		if ret == nvml.SUCCESS { // handles have changed
			continue
		}
		failures++
		if failures > eventRetries || ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_UNINITIALIZED {
			return fail(op, "", ret)
		}
		d.o.log.Warn("cannot wait for GPU events; trying again", "code", int(ret))
		pause := time.NewTimer(eventPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// watch creates one event set and waits on it until ctx ends, a wait fails or the handles have changed.
func (d *Driver) watch(ctx context.Context, f func(gpu.Event)) nvml.Return {
	d.mu.Lock()
	changed := d.changed
	d.mu.Unlock()
	set, ret := d.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return ret
	}
	defer func() { _ = set.Free() }() // an error cannot be handled
	names, ret := d.register(set)
	if ret != nvml.SUCCESS {
		return ret
	}
	for _, id := range names { // What changed until now was not reported.
		d.noteReplaced(id, nil)
	}
	f(gpu.Event{Time: time.Now(), Kind: gpu.EventWatching})
	for ctx.Err() == nil {
		data, ret := set.Wait(uint32(eventWait.Milliseconds()))
		d.mu.Lock()
		stale := d.changed != changed
		d.mu.Unlock()
		switch ret {
		case nvml.SUCCESS:
			if e, ok := event(data, names); ok {
				if e.Kind == gpu.EventMIGConfig {
					d.noteReplaced(e.GPU, e.GI)
				}
				f(e)
			}
		case nvml.ERROR_TIMEOUT:
		default:
			return ret
		}
		if stale {
			return nvml.SUCCESS
		}
	}
	return nvml.SUCCESS
}

// register registers the supported events of every GPU. A GPU whose registration fails is left out. The code is
// NOT_SUPPORTED when no GPU is registered.
func (d *Driver) register(set nvml.EventSet) (map[nvml.Device]gpu.UUID, nvml.Return) {
	var want uint64
	for _, k := range eventKinds() {
		want |= k.mask
	}
	entries, ret := d.entries()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	names := make(map[nvml.Device]gpu.UUID)
	for _, s := range entries {
		h, ret := s.find()
		if ret != nvml.SUCCESS {
			continue
		}
		id, ret := h.GetUUID()
		if ret != nvml.SUCCESS || d.excludes(gpu.UUID(id)) {
			continue
		}
		supported, ret := h.GetSupportedEventTypes()
		if ret != nvml.SUCCESS || supported&want == 0 {
			continue
		}
		if ret := h.RegisterEvents(supported&want, set); ret != nvml.SUCCESS {
			d.o.log.Warn("cannot watch a GPU's events", "gpu", id, "code", int(ret))
			continue
		}
		names[h] = gpu.UUID(id)
	}
	if len(names) == 0 {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	return names, nvml.SUCCESS
}

// event converts an event of the library.
func event(data nvml.EventData, names map[nvml.Device]gpu.UUID) (gpu.Event, bool) {
	kind, ok := eventKind(data.EventType)
	if !ok {
		return gpu.Event{}, false
	}
	e := gpu.Event{Time: time.Now(), GPU: names[data.Device], Kind: kind}
	if e.GPU == "" {
		// An instance's event may come with another handle of the same GPU.
		if id, ret := data.Device.GetUUID(); ret == nvml.SUCCESS {
			e.GPU = gpu.UUID(id)
		}
	}
	if kind == gpu.EventXID {
		e.XID = data.EventData
	}
	if data.GpuInstanceId != noInstance {
		gi := data.GpuInstanceId
		e.GI = &gi
	}
	if data.ComputeInstanceId != noInstance {
		ci := data.ComputeInstanceId
		e.CI = &ci
	}
	return e, true
}
