//go:build cgo

package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// SetMIGMode implements gpu.Driver.
func (d *Driver) SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (gpu.ModeChange, error) {
	const op = "set the MIG mode"
	if err := d.missing.CanSetMode(); err != nil {
		return gpu.ModeChange{}, refuse(op, id, err)
	}
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return gpu.ModeChange{}, err
	}
	d.dropUse(v, nil)
	activation, ret := callSetMIGMode(v.handle, on)
	// Handles and the device's minor may have changed, also after an error.
	v.invalidate()
	v.mu.Unlock()
	if ret != nvml.SUCCESS {
		return gpu.ModeChange{}, fail(op, id, ret)
	}
	if v, err = d.lockDevice(ctx, op, id); err != nil {
		return gpu.ModeChange{}, err
	}
	defer v.mu.Unlock()
	state, ret := d.migState(v.handle)
	if ret != nvml.SUCCESS {
		return gpu.ModeChange{}, v.failed(op, ret)
	}
	m := gpu.ModeChange{Current: state.Current, Pending: state.Pending, Activation: sentinel(activation), Minor: -1}
	if m.Activation == nil && m.Current != m.Pending {
		m.Activation = gpu.ErrResetRequired // the call succeeded, and only a reset is missing
	}
	if d.symbols.has(minorNumber) {
		if m.Minor, ret = v.handle.GetMinorNumber(); ret != nvml.SUCCESS {
			return m, v.failed(op, ret)
		}
	}
	return m, nil
}

// callSetMIGMode is the only caller of SetMigMode: here the binding returns the activation status first and the return
// code second, unlike elsewhere.
func callSetMIGMode(h nvml.Device, on bool) (activation, ret nvml.Return) {
	mode := nvml.DEVICE_MIG_DISABLE
	if on {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	return h.SetMigMode(mode)
}

// CreateInstance implements gpu.Driver.
func (d *Driver) CreateInstance(ctx context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error) {
	const op = "create instance"
	v, err := d.change(ctx, op, id)
	if err != nil {
		return gpu.Instance{}, err
	}
	defer v.mu.Unlock()
	profiles, ret := d.giProfiles(v)
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, v.failed(op, ret)
	}
	i := slices.IndexFunc(profiles, func(p giProfile) bool { return p.ID == want.ProfileID })
	if i < 0 {
		return gpu.Instance{}, refuse(op, id, fmt.Errorf("%w: this GPU has no profile %d", gpu.ErrInvalid, want.ProfileID))
	}
	p := profiles[i]
	gi, ret := v.handle.CreateGpuInstanceWithPlacement(&p.info,
		&nvml.GpuInstancePlacement{Start: want.Placement.Start, Size: want.Placement.Size})
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, v.failed(op, ret)
	}
	compute := want.Compute
	if len(compute) == 0 {
		compute = []gpu.NewCompute{{Slices: p.Slices}}
	}
	created, err := d.addCompute(v, op, gi, p.ID, compute)
	if err == nil {
		in, _, ret := d.instance(v, gi)
		if ret == nvml.SUCCESS {
			return in, nil
		}
		err = v.failed(op, ret)
	}
	return gpu.Instance{}, d.undoCreate(v, op, gi, created, err)
}

// undoCreate destroys a GPU instance that could not be completed, because it would occupy slices without use.
func (d *Driver) undoCreate(v *device, op string, gi nvml.GpuInstance, created []nvml.ComputeInstance, cause error) error {
	ret := removeCompute(created)
	if ret == nvml.SUCCESS {
		ret = gi.Destroy()
	}
	if ret == nvml.SUCCESS {
		return cause
	}
	var e *gpu.Error
	code := 0
	if errors.As(cause, &e) {
		code, cause = e.Code, e.Err
	}
	return &gpu.Error{Op: op, GPU: v.id, Code: code, Err: fmt.Errorf("%w; cannot undo the creation: %w", cause, sentinel(ret))}
}

// CompleteInstance implements gpu.Driver. Existing compute instances count as created if they have the requested size,
// and the requested placement if one is given.
func (d *Driver) CompleteInstance(ctx context.Context, id gpu.UUID, gi uint32, compute []gpu.NewCompute) (gpu.Instance, error) {
	const op = "complete instance"
	v, err := d.change(ctx, op, id)
	if err != nil {
		return gpu.Instance{}, err
	}
	defer v.mu.Unlock()
	h, info, profile, err := d.find(v, op, gi)
	if err != nil {
		return gpu.Instance{}, err
	}
	before, _, ret := d.instance(v, h)
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, v.failed(op, ret)
	}
	if len(compute) == 0 {
		compute = []gpu.NewCompute{{Slices: profile.Slices}}
	}
	created, err := d.addCompute(v, op, h, info.ProfileId, gpu.MissingCompute(compute, before.Compute))
	if err == nil {
		in, _, ret := d.instance(v, h)
		if ret == nvml.SUCCESS {
			return in, nil
		}
		err = v.failed(op, ret)
	}
	if ret := removeCompute(created); ret != nvml.SUCCESS {
		err = fmt.Errorf("%w; cannot undo the creation: %w", err, sentinel(ret))
	}
	return gpu.Instance{}, err
}

// DestroyInstance implements gpu.Driver. A GPU instance with a process is not changed: of several compute instances, the
// idle ones would be destroyed before the busy one fails.
func (d *Driver) DestroyInstance(ctx context.Context, id gpu.UUID, gi uint32) error {
	const op = "destroy instance"
	v, err := d.change(ctx, op, id)
	if err != nil {
		return err
	}
	defer v.mu.Unlock()
	h, info, _, err := d.find(v, op, gi)
	if err != nil {
		return err
	}
	before, migs, ret := d.instance(v, h)
	if ret != nvml.SUCCESS {
		return v.failed(op, ret)
	}
	procs, ret := d.processes(ctx, v, migs)
	if ret != nvml.SUCCESS {
		return v.failed(op, ret)
	}
	for _, p := range procs {
		if p.GI != nil && *p.GI == gi {
			return refuse(op, id, fmt.Errorf("%w: pid %d uses GPU instance %d", gpu.ErrInUse, p.PID, gi))
		}
	}
	found, ret := d.computeInstances(v, h, info.ProfileId)
	if ret != nvml.SUCCESS {
		return v.failed(op, ret)
	}
	d.freeUse(v, gi) // nvml.h does not say whether a sample keeps its instance.
	var destroyed []gpu.NewCompute
	for i, c := range found {
		if ret = c.handle.Destroy(); ret != nvml.SUCCESS {
			break
		}
		destroyed = append(destroyed, before.Compute[i].Again())
	}
	if ret == nvml.SUCCESS {
		ret = h.Destroy()
	}
	if ret == nvml.SUCCESS {
		return nil
	}
	// A failed call must change nothing: the destroyed compute instances are created again at their placements.
	// A process that the driver does not list may use one that is left.
	if _, err := d.addCompute(v, op, h, info.ProfileId, destroyed); err != nil {
		return failf(op, id, ret, "GPU instance %d has lost compute instances: %w", gi, err)
	}
	return v.failed(op, ret)
}

// change prepares a change of instances and returns the locked device. The caller unlocks it.
func (d *Driver) change(ctx context.Context, op string, id gpu.UUID) (*device, error) {
	if err := d.missing.CanChange(false); err != nil {
		return nil, refuse(op, id, err)
	}
	return d.lockDevice(ctx, op, id)
}

// find returns an existing GPU instance.
func (d *Driver) find(v *device, op string, gi uint32) (nvml.GpuInstance, nvml.GpuInstanceInfo, giProfile, error) {
	h, ret := v.handle.GetGpuInstanceById(int(gi))
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		ret = nvml.ERROR_NOT_FOUND
	}
	if ret != nvml.SUCCESS {
		return nil, nvml.GpuInstanceInfo{}, giProfile{}, v.failed(op, ret)
	}
	info, ret := h.GetInfo()
	if ret != nvml.SUCCESS {
		return nil, info, giProfile{}, v.failed(op, ret)
	}
	profiles, ret := d.giProfiles(v)
	if ret != nvml.SUCCESS {
		return nil, info, giProfile{}, v.failed(op, ret)
	}
	i := slices.IndexFunc(profiles, func(p giProfile) bool { return p.ID == info.ProfileId })
	if i < 0 {
		return nil, info, giProfile{}, refuse(
			op, v.id, fmt.Errorf("%w: the GPU instance is of profile %d, which the GPU does not list", gpu.ErrUnknown, info.ProfileId),
		)
	}
	return h, info, profiles[i], nil
}

// addCompute creates compute instances and returns those created, also when one fails. Several profiles may have the
// requested number of slices; the GPU instance accepts one of them.
func (d *Driver) addCompute(
	v *device, op string, gi nvml.GpuInstance, profile uint32, want []gpu.NewCompute,
) ([]nvml.ComputeInstance, error) {
	var created []nvml.ComputeInstance
	if len(want) == 0 {
		return nil, nil
	}
	profiles, ret := d.computeProfiles(v, gi, profile)
	if ret != nvml.SUCCESS {
		return nil, v.failed(op, ret)
	}
	for _, w := range gpu.ComputeOrder(want) {
		c, ret := d.addExact(v, gi, profiles, w)
		if ret != nvml.SUCCESS {
			return created, failf(op, v.id, ret, "compute instance of %d slices", w.Slices)
		}
		created = append(created, c)
	}
	return created, nil
}

// addOne creates one compute instance with the first profile of its size that the GPU instance accepts.
func (d *Driver) addOne(gi nvml.GpuInstance, profiles []computeProfile, w gpu.NewCompute) (nvml.ComputeInstance, nvml.Return) {
	ret := nvml.ERROR_INVALID_ARGUMENT // no profile has this size
	for _, p := range profiles {
		if p.Slices != w.Slices {
			continue
		}
		var c nvml.ComputeInstance
		if w.Placement != nil && d.symbols.has(placeCompute) {
			c, ret = gi.CreateComputeInstanceWithPlacement(&p.info,
				&nvml.ComputeInstancePlacement{Start: w.Placement.Start, Size: w.Placement.Size})
		} else {
			c, ret = gi.CreateComputeInstance(&p.info)
		}
		if ret != nvml.ERROR_NOT_SUPPORTED && ret != nvml.ERROR_INVALID_ARGUMENT {
			return c, ret
		}
	}
	return nil, ret
}

// addExact creates one compute instance where it is requested. A library that cannot place compute instances chooses the
// placement: those at another placement occupy it until the driver has chosen the requested one, and are then destroyed.
func (d *Driver) addExact(v *device, gi nvml.GpuInstance, profiles []computeProfile, w gpu.NewCompute) (nvml.ComputeInstance, nvml.Return) {
	if !w.Exact() || w.Placement != nil && d.symbols.has(placeCompute) {
		return d.addOne(gi, profiles, w)
	}
	var others []nvml.ComputeInstance
	var requested nvml.ComputeInstance
	ret := nvml.SUCCESS
	for requested == nil && ret == nvml.SUCCESS {
		var c nvml.ComputeInstance
		if c, ret = d.addOne(gi, profiles, w); ret != nvml.SUCCESS {
			break
		}
		others = append(others, c)
		var is bool
		if is, ret = d.isRequested(v, gi, c, w); is {
			requested, others = c, others[:len(others)-1]
		}
	}
	if undone := removeCompute(others); ret == nvml.SUCCESS {
		ret = undone
	}
	return requested, ret
}

// isRequested reports whether a compute instance that was just created is the requested one.
func (d *Driver) isRequested(v *device, gi nvml.GpuInstance, c nvml.ComputeInstance, w gpu.NewCompute) (bool, nvml.Return) {
	info, ret := c.GetInfo()
	if ret != nvml.SUCCESS {
		return false, ret
	}
	in, ret := gi.GetInfo()
	if ret != nvml.SUCCESS {
		return false, ret
	}
	_, id, ret := d.migDevice(v, in.Id, info)
	at := gpu.Placement{Start: info.Placement.Start, Size: info.Placement.Size}
	return ret == nvml.SUCCESS && w.Is(gpu.ComputeInstance{Placement: at, Slices: w.Slices, UUID: id}) &&
		(w.Placement == nil || at.Size != 0), ret
}

// removeCompute destroys compute instances that were just created.
func removeCompute(created []nvml.ComputeInstance) nvml.Return {
	for _, c := range slices.Backward(created) {
		if ret := c.Destroy(); ret != nvml.SUCCESS {
			return ret
		}
	}
	return nvml.SUCCESS
}
