//go:build cgo

package nvml

import (
	"context"
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// Memory implements gpu.Driver.
func (d *Driver) Memory(ctx context.Context, id gpu.UUID) (gpu.Memory, error) {
	const op = "read the memory"
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return gpu.Memory{}, err
	}
	defer v.mu.Unlock()
	m, ret := d.memory(v.handle)
	return m, v.failed(op, ret)
}

// memory reads the memory of a GPU or MIG device.
func (d *Driver) memory(h nvml.Device) (gpu.Memory, nvml.Return) {
	if d.symbols.has(reservedMemory) {
		m, ret := h.GetMemoryInfo_v2()
		if ret == nvml.SUCCESS {
			return gpu.Memory{Total: m.Total, Reserved: m.Reserved, Used: m.Used, Free: m.Free}, ret
		}
		if !absent(ret) && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			return gpu.Memory{}, ret
		}
	}
	m, ret := h.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return gpu.Memory{}, ret
	}
	return gpu.Memory{Total: m.Total, Used: m.Used, Free: m.Free}, ret
}

// Snapshot implements gpu.Driver.
func (d *Driver) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	const op = "read the state"
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return gpu.Snapshot{}, err
	}
	defer v.mu.Unlock()
	s, ret := d.snapshot(ctx, v)
	return s, v.failed(op, ret)
}

func (d *Driver) snapshot(ctx context.Context, v *device) (s gpu.Snapshot, ret nvml.Return) {
	if s.Identity, ret = d.identity(v.handle, v.id); ret != nvml.SUCCESS {
		return s, ret
	}
	if s.Memory, ret = d.memory(v.handle); ret != nvml.SUCCESS {
		return s, ret
	}
	if s.MIG, ret = d.migState(v.handle); ret != nvml.SUCCESS {
		return s, ret
	}
	if !s.MIG.Current && d.symbols.has(utilizationRates) {
		if u, ret := v.handle.GetUtilizationRates(); ret == nvml.SUCCESS {
			percent := int(u.Gpu)
			s.Utilization = &percent
		} else if !absent(ret) {
			return s, ret
		}
	}
	if d.symbols.has(readComputeMode) {
		if m, ret := v.handle.GetComputeMode(); ret == nvml.SUCCESS {
			s.ComputeMode = computeMode(m)
		} else if !absent(ret) {
			return s, ret
		}
	}
	if d.symbols.has(readPower) {
		if mw, ret := v.handle.GetPowerManagementLimit(); ret == nvml.SUCCESS {
			s.PowerLimit = new(uint64(mw))
		} // A board without one is not in trouble, and the other calls report one that is.
	}
	var migs []migDevice
	if s.MIG.Current && d.symbols.has(migInstances) {
		if s.Instances, migs, ret = d.instances(v); ret != nvml.SUCCESS {
			return s, ret
		}
	}
	s.Processes, ret = d.processes(ctx, v, migs)
	return s, ret
}

// migState reads the MIG mode. A GPU without the mode is not capable of MIG.
func (d *Driver) migState(h nvml.Device) (gpu.MIGState, nvml.Return) {
	if !d.symbols.has(migMode) {
		return gpu.MIGState{Missing: d.missing}, nvml.SUCCESS
	}
	current, pending, ret := h.GetMigMode()
	if absent(ret) {
		return gpu.MIGState{}, nvml.SUCCESS
	}
	if ret != nvml.SUCCESS {
		return gpu.MIGState{}, ret
	}
	m := gpu.MIGState{
		Capable: true,
		Current: current == nvml.DEVICE_MIG_ENABLE,
		Pending: pending == nvml.DEVICE_MIG_ENABLE,
		Missing: d.missing,
	}
	m.Resetless = d.resetless(h)
	return m, nvml.SUCCESS
}

// resetless reads whether a change of the MIG mode needs no reset; nil when the driver does not report it.
func (d *Driver) resetless(h nvml.Device) *bool {
	if !d.symbols.has(fieldValues) {
		return nil
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_IS_RESETLESS_MIG_SUPPORTED}}
	if ret := h.GetFieldValues(values); ret != nvml.SUCCESS {
		return nil
	}
	n, ok := fieldNumber(values[0])
	if !ok {
		return nil
	}
	yes := n != 0
	return &yes
}

// fieldNumber reads an integer of any type.
func fieldNumber(v nvml.FieldValue) (uint64, bool) {
	if nvml.Return(v.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(v.Value[:])), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return uint64(binary.NativeEndian.Uint16(v.Value[:])), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(v.Value[:]), true
	}
	return 0, false
}

// computeMode maps the vendor's number. The driver no longer supports exclusive-thread mode.
func computeMode(m nvml.ComputeMode) gpu.ComputeMode {
	switch m {
	case nvml.COMPUTEMODE_DEFAULT:
		return gpu.ComputeDefault
	case nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		return gpu.ComputeExclusiveProcess
	case nvml.COMPUTEMODE_PROHIBITED:
		return gpu.ComputeProhibited
	}
	return gpu.ComputeModeUnknown
}

// SetComputeMode implements gpu.Driver.
func (d *Driver) SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	const op = "set the compute mode"
	if !d.symbols.has(setComputeMode) {
		return refuse(op, id, gpu.ErrMissing)
	}
	for _, m := range []nvml.ComputeMode{nvml.COMPUTEMODE_DEFAULT, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.COMPUTEMODE_PROHIBITED} {
		if computeMode(m) != mode {
			continue
		}
		v, err := d.lockDevice(ctx, op, id)
		if err != nil {
			return err
		}
		defer v.mu.Unlock()
		return v.failed(op, v.handle.SetComputeMode(m))
	}
	return refuse(op, id, gpu.ErrInvalid)
}
