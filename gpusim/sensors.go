package gpusim

import (
	"context"
	"errors"

	"github.com/gpushare/gpushare/gpu"
)

// sensorCalls are the calls of a reading of what changes within a second, in the order in which the worker makes them.
func (g *device) sensorCalls(to *gpu.Sensors) []step {
	power := func(to **uint64, value func(*sensors) uint64) func(*device) Ret {
		return func(g *device) Ret {
			if g.model.Sensors.Power == nil {
				return NotSupported
			}
			*to = new(value(&g.sensors))
			return Success
		}
	}
	clock := func(set func(c *gpu.Clocks, has gpu.Clocks)) func(*device) Ret {
		return func(g *device) Ret {
			if to.Clocks == nil {
				to.Clocks = &gpu.Clocks{}
			}
			set(to.Clocks, g.sensors.clocks)
			return Success
		}
	}
	return []step{
		{"DeviceGetTemperature", func(g *device) Ret { to.Temperature = new(g.sensors.temperature); return Success }},
		{"DeviceGetFieldValues", func(g *device) Ret {
			if g.model.Sensors.Memory {
				to.MemoryTemperature = new(g.sensors.memoryTemperature)
			}
			return Success
		}},
		{"DeviceGetPowerUsage", power(&to.PowerUsage, func(s *sensors) uint64 { return s.usage })},
		{"DeviceGetEnforcedPowerLimit", power(&to.PowerLimit, (*sensors).enforcedLimit)},
		{g.node.cfg.clockReasonsCall(), func(g *device) Ret { to.Throttle = throttleReasons(g.sensors.throttle); return Success }},
		{"DeviceGetClockInfo", clock(func(c *gpu.Clocks, has gpu.Clocks) { c.SM = has.SM })},
		{"DeviceGetClockInfo", clock(func(c *gpu.Clocks, has gpu.Clocks) { c.Memory = has.Memory })},
		{"DeviceGetMaxClockInfo", clock(func(c *gpu.Clocks, has gpu.Clocks) { c.MaxSM = has.MaxSM })},
		{"DeviceGetFanSpeed", func(g *device) Ret {
			if g.sensors.fan == nil {
				return NotSupported
			}
			to.Fan = new(*g.sensors.fan)
			return Success
		}},
	}
}

// Sensors reads what changes within a second. A call that is not supported leaves its field away, as in the worker.
func (d *Driver) Sensors(ctx context.Context, id gpu.UUID) (gpu.Sensors, error) {
	const op = "read the sensors"
	var out gpu.Sensors
	d.n.mu.Lock()
	g := d.n.findLocked(string(id))
	d.n.mu.Unlock()
	if g == nil {
		return out, NotFound.err(op, id)
	}
	for _, s := range g.sensorCalls(&out) {
		if err := d.on(ctx, op, id, s); err != nil && !errors.Is(err, gpu.ErrNotSupported) && !errors.Is(err, gpu.ErrMissing) {
			return gpu.Sensors{}, err
		}
	}
	return out, nil
}

// The numbers of the clocks, as the vendor's header has them.
const (
	clockMemory = 2
	clockKinds  = 4
)

// clockReaders answer the library's calls of clocks and fans.
func clockReaders() map[string]func(q *call, t target) Ret {
	clock := func(sm func(gpu.Clocks) uint32) func(*call, target) Ret {
		return func(q *call, t target) Ret {
			c := t.g.sensors.clocks
			switch {
			case q.args[1] >= clockKinds:
				return InvalidArgument
			case q.args[1] == clockMemory:
				return q.out.put(uint64(c.Memory))
			}
			return q.out.put(uint64(sm(c)))
		}
	}
	return map[string]func(q *call, t target) Ret{
		"DeviceGetClockInfo":    clock(func(c gpu.Clocks) uint32 { return c.SM }),
		"DeviceGetMaxClockInfo": clock(func(c gpu.Clocks) uint32 { return c.MaxSM }),
		"DeviceGetFanSpeed": func(q *call, t target) Ret {
			if t.g.sensors.fan == nil {
				return NotSupported
			}
			return q.out.put(uint64(*t.g.sensors.fan))
		},
	}
}
