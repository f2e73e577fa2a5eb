//go:build cgo

package nvml

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// Sensors implements gpu.Driver.
func (d *Driver) Sensors(ctx context.Context, id gpu.UUID) (gpu.Sensors, error) {
	const op = "read the sensors"
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return gpu.Sensors{}, err
	}
	defer v.mu.Unlock()
	r := &reading{d: d, v: v}
	if v.health.known(time.Now(), sharedFor) {
		r.shared = &v.health.value
	}
	var out gpu.Sensors
	for _, part := range []func(*gpu.Sensors){r.heat, r.draw, r.clocks, r.fan} {
		if err := ctx.Err(); err != nil {
			return gpu.Sensors{}, refuse(op, id, fmt.Errorf("%w: %w", gpu.ErrTimeout, err))
		}
		part(&out)
		if r.ret != nvml.SUCCESS {
			return gpu.Sensors{}, v.failed(op, r.ret)
		}
	}
	return out, nil
}

func (r *reading) heat(out *gpu.Sensors) {
	if r.shared != nil {
		out.Temperature, out.MemoryTemperature = r.shared.temperature, r.shared.memoryTemperature
		return
	}
	out.Temperature = r.temperature()
	if !r.can(fieldValues) {
		return
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_MEMORY_TEMP}}
	if ret := r.v.handle.GetFieldValues(values); !r.got(ret) {
		return
	}
	if t, ok := fieldNumber(values[0]); ok && t <= math.MaxInt32 {
		out.MemoryTemperature = new(int(t))
	}
}

// draw reads what the GPU draws and may draw. Each is of use without the other.
func (r *reading) draw(out *gpu.Sensors) {
	if r.shared != nil && r.shared.powerUsage != nil {
		out.PowerUsage = r.shared.powerUsage
	} else if r.can(readPower) {
		if mw, ret := r.v.handle.GetPowerUsage(); r.got(ret) {
			out.PowerUsage = new(uint64(mw))
		}
	}
	if r.can(enforcedPower) {
		if mw, ret := r.v.handle.GetEnforcedPowerLimit(); r.got(ret) {
			out.PowerLimit = new(uint64(mw))
			return
		}
	}
	if !r.can(readPower) {
		return
	}
	if mw, ret := r.v.handle.GetPowerManagementLimit(); r.got(ret) {
		out.PowerLimit = new(uint64(mw))
	}
}

// clocks reads the clocks, and why they are lowered.
func (r *reading) clocks(out *gpu.Sensors) {
	if r.shared != nil {
		out.Throttle = r.shared.throttle
	} else {
		out.Throttle = r.throttleReasons()
	}
	var c gpu.Clocks
	read := func(which nvml.ClockType, to *uint32) {
		if !r.can(clocks) {
			return
		}
		if mhz, ret := r.v.handle.GetClockInfo(which); r.got(ret) {
			*to = mhz
		}
	}
	read(nvml.CLOCK_SM, &c.SM)
	read(nvml.CLOCK_MEM, &c.Memory)
	if r.can(maxClocks) {
		if mhz := r.v.maxClock.read(r.maxClock); mhz != nil {
			c.MaxSM = *mhz
		}
	}
	if c != (gpu.Clocks{}) {
		out.Clocks = &c
	}
}

func (r *reading) maxClock() (*uint32, bool) {
	mhz, ret := r.v.handle.GetMaxClockInfo(nvml.CLOCK_SM)
	return &mhz, r.got(ret)
}

func (r *reading) fan(out *gpu.Sensors) {
	if !r.can(fanSpeed) {
		return
	}
	if percent, ret := r.v.handle.GetFanSpeed(); r.got(ret) {
		out.Fan = new(int(percent))
	}
}
