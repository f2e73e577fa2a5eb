package gpusim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// BoardSensors are the figures of a board's sensors. A nil or zero figure is one that no listing of the board has: the virtual
// board does not report it.
type BoardSensors struct {
	Power *PowerRange
	// Slowdown is the temperature in °C at which the hardware lowers its clocks. Boards from Hopper on report it in another way.
	Slowdown int
	Memory   bool   // it reports the temperature of its memory
	Banks    uint32 // of memory, with spare rows
}

// PowerRange is in watts.
type PowerRange struct{ Default, Min, Max uint64 }

// The sensors of an idle board, the same on every one.
const (
	idleTemperature       = 34     // °C
	idleMemoryTemperature = 41     // °C
	idlePower             = 62_000 // mW
)

// The bits of the reasons why clocks are lowered, as the vendor's header numbers them.
const throttleIdle = 0x1 // the GPU is idle: no trouble

var throttleBits = map[string]uint64{
	gpu.ThrottlePowerCap: 0x4, gpu.ThrottleHardware: 0x8, gpu.ThrottleThermal: 0x20, gpu.ThrottleHardwareThermal: 0x40,
	gpu.ThrottlePowerBrake: 0x80,
}

// recoveryWords are the recovery actions by number.
var recoveryWords = []string{
	gpu.RecoveryNone,
	gpu.RecoveryReset,
	gpu.RecoveryReboot,
	gpu.RecoveryDrainP2P,
	gpu.RecoveryDrainAndReset,
	gpu.RecoveryIMEX,
	gpu.RecoveryBusReset,
}

// recoveryBranch is the first driver branch with the recovery action, clockReasonsBranch the first with the newer name of the
// reasons why clocks are lowered among those that the virtual node has.
const (
	recoveryBranch     = 570
	clockReasonsBranch = 535
)

// branch is the number before the first dot of a driver's version; 0 when there is none.
func (cfg Config) branch() int {
	number, _, _ := strings.Cut(cfg.DriverVersion, ".")
	n, _ := strconv.Atoi(number)
	return n
}

// clockReasonsCall is the call that a library of the driver's branch has.
func (cfg Config) clockReasonsCall() string {
	if cfg.branch() < clockReasonsBranch {
		return "DeviceGetCurrentClocksThrottleReasons"
	}
	return "DeviceGetCurrentClocksEventReasons"
}

// sensors are the present values of the sensors and counters of one GPU.
type sensors struct {
	temperature, memoryTemperature int
	usage, limit                   uint64 // mW
	moduleLimit                    uint64 // mW, of the server or the module, which the driver does not set; 0: there is none
	clocks                         gpu.Clocks
	fan                            *int   // percent; nil: the board has none
	throttle                       uint64 // bits
	ecc                            gpu.ECCErrors
	rows                           gpu.RemappedRows // without the banks
	banks                          gpu.RowBanks
	links                          gpu.NVLinkErrors
	replays                        uint64
}

func newSensors(m *Model) sensors {
	return sensors{
		temperature: idleTemperature, memoryTemperature: idleMemoryTemperature, usage: idlePower, throttle: throttleIdle,
		banks:  gpu.RowBanks{Max: m.Sensors.Banks},
		clocks: gpu.Clocks{SM: clockMHz, MaxSM: clockMHz, Memory: memoryClockMHz},
	}
}

// enforcedLimit is the lowest of all limits of power.
func (s *sensors) enforcedLimit() uint64 {
	if s.moduleLimit > 0 {
		return min(s.limit, s.moduleLimit)
	}
	return s.limit
}

// loadSensorsLocked is what a driver load does: the power limit is the board's, and counters of the driver begin at 0. Those of
// the board stay.
func (g *device) loadSensorsLocked() {
	g.resetSensorsLocked()
	g.sensors.links, g.sensors.replays = gpu.NVLinkErrors{}, 0
}

// resetSensorsLocked is what a reset does: the power limit is the board's, and rows that waited for it are replaced.
func (g *device) resetSensorsLocked() {
	if p := g.model.Sensors.Power; p != nil {
		g.sensors.limit = p.Default * 1000
	}
	g.sensors.rows.Pending = false
}

// setPowerLocked sets the power limit in mW.
func (g *device) setPowerLocked(milliwatts uint64) Ret {
	switch p := g.model.Sensors.Power; {
	case p == nil:
		return NotSupported
	case milliwatts < p.Min*1000 || milliwatts > p.Max*1000:
		return InvalidArgument
	}
	g.sensors.limit = milliwatts
	return Success
}

// rowsLocked: the driver does not report replaced rows while the GPU has instances (nvml.h), nor before Ampere.
func (g *device) rowsLocked() (gpu.RemappedRows, Ret) {
	if len(g.instances) > 0 {
		return gpu.RemappedRows{}, NotSupported
	}
	return g.sensors.rows, Success
}

// countsLinkErrors: boards from Blackwell on do not have these counters (nvml.h).
func (g *device) countsLinkErrors() bool {
	return g.model.NVLinks > 0 && g.model.Architecture != Blackwell
}

// healthCalls are the calls of a reading, in the order in which the worker makes them.
func (g *device) healthCalls(to *gpu.Health) []step {
	power := func(set func(p *gpu.Power, r *PowerRange)) func(*device) Ret {
		return func(g *device) Ret {
			if g.model.Sensors.Power == nil {
				return NotSupported
			}
			if to.Power == nil {
				to.Power = &gpu.Power{}
			}
			set(to.Power, g.model.Sensors.Power)
			return Success
		}
	}
	calls := []step{
		{"DeviceGetTemperature", func(g *device) Ret { to.Temperature = new(g.sensors.temperature); return Success }},
		{"DeviceGetTemperatureThreshold", func(g *device) Ret {
			if g.model.Sensors.Slowdown == 0 {
				return NotSupported
			}
			to.SlowdownTemperature = new(g.model.Sensors.Slowdown)
			return Success
		}},
		{"DeviceGetPowerUsage", power(func(p *gpu.Power, _ *PowerRange) { p.Usage = g.sensors.usage })},
		{"DeviceGetPowerManagementLimit", power(func(p *gpu.Power, _ *PowerRange) { p.Limit = g.sensors.limit })},
		{"DeviceGetPowerManagementLimitConstraints", power(func(p *gpu.Power, r *PowerRange) { p.Min, p.Max = r.Min*1000, r.Max*1000 })},
		{"DeviceGetPowerManagementDefaultLimit", power(func(p *gpu.Power, r *PowerRange) { p.Default = r.Default * 1000 })},
		{g.node.cfg.clockReasonsCall(), func(g *device) Ret { to.Throttle = throttleReasons(g.sensors.throttle); return Success }},
		{"DeviceGetTotalEccErrors", func(g *device) Ret { to.ECC = new(g.sensors.ecc); return Success }},
		{"DeviceGetRemappedRows", func(g *device) Ret {
			rows, ret := g.rowsLocked()
			if ret == Success {
				to.Rows = &rows
			}
			return ret
		}},
		{"DeviceGetRowRemapperHistogram", func(g *device) Ret {
			if to.Rows == nil || g.model.Sensors.Banks == 0 {
				return NotSupported
			}
			to.Rows.Banks = new(g.sensors.banks)
			return Success
		}},
		{"DeviceGetNvLinkErrorCounter", func(g *device) Ret {
			if !g.countsLinkErrors() {
				return NotSupported
			}
			to.NVLinkErrors = new(g.sensors.links)
			return Success
		}},
		{"DeviceGetPcieReplayCounter", func(g *device) Ret { to.PCIeReplays = new(g.sensors.replays); return Success }},
		{"DeviceGetFieldValues", func(g *device) Ret {
			if g.model.Sensors.Memory {
				to.MemoryTemperature = new(g.sensors.memoryTemperature)
			}
			if g.node.cfg.branch() >= recoveryBranch {
				to.Recovery = recoveryWords[g.recovery]
			}
			return Success
		}},
	}
	return calls
}

// throttleReasons names the reasons that are trouble, sorted.
func throttleReasons(bits uint64) []string {
	out := []string{}
	for word, bit := range throttleBits {
		if bits&bit != 0 {
			out = append(out, word)
		}
	}
	slices.Sort(out)
	return out
}

// Health reads the sensors and counters of one GPU. A call that is not supported leaves its field away, as in the worker.
func (d *Driver) Health(ctx context.Context, id gpu.UUID) (gpu.Health, error) {
	const op = "read the health"
	var out gpu.Health
	d.n.mu.Lock()
	g := d.n.findLocked(string(id))
	d.n.mu.Unlock()
	if g == nil {
		return out, NotFound.err(op, id)
	}
	for _, s := range g.healthCalls(&out) {
		if err := d.on(ctx, op, id, s); err != nil && !errors.Is(err, gpu.ErrNotSupported) && !errors.Is(err, gpu.ErrMissing) {
			return gpu.Health{}, err
		}
	}
	return out, nil
}

// SetPowerLimit sets the power limit.
func (d *Driver) SetPowerLimit(ctx context.Context, id gpu.UUID, milliwatts uint64) error {
	return d.on(
		ctx, "set the power limit", id,
		step{"DeviceSetPowerManagementLimit", func(g *device) Ret { return g.setPowerLocked(milliwatts) }},
	)
}

// healthLocked is the true state, without a call.
func (g *device) healthLocked() *gpu.Health {
	out := &gpu.Health{}
	for _, s := range g.healthCalls(out) {
		s.body(g)
	}
	return out
}

// healthReaders answer the library's calls of sensors and counters.
func healthReaders() map[string]func(q *call, t target) Ret {
	power := func(value func(t target) []uint64) func(*call, target) Ret {
		return func(q *call, t target) Ret {
			if t.g.model.Sensors.Power == nil {
				return NotSupported
			}
			return q.out.put(value(t)...)
		}
	}
	throttle := func(q *call, t target) Ret { return q.out.put(t.g.sensors.throttle) }
	limit := func(t target) []uint64 { return []uint64{t.g.sensors.limit} }
	return map[string]func(q *call, t target) Ret{
		"DeviceGetTemperature": func(q *call, t target) Ret { return q.out.put(uint64(t.g.sensors.temperature)) },
		"DeviceGetTemperatureThreshold": func(q *call, t target) Ret {
			const slowdown = 1
			if q.args[1] != slowdown || t.g.model.Sensors.Slowdown == 0 {
				return NotSupported
			}
			return q.out.put(uint64(t.g.model.Sensors.Slowdown))
		},
		"DeviceGetPowerUsage":           power(func(t target) []uint64 { return []uint64{t.g.sensors.usage} }),
		"DeviceGetPowerManagementLimit": power(limit),
		"DeviceGetEnforcedPowerLimit":   power(func(t target) []uint64 { return []uint64{t.g.sensors.enforcedLimit()} }),
		"DeviceGetPowerManagementLimitConstraints": power(func(t target) []uint64 {
			p := t.g.model.Sensors.Power
			return []uint64{p.Min * 1000, p.Max * 1000}
		}),
		"DeviceGetPowerManagementDefaultLimit":  power(func(t target) []uint64 { return []uint64{t.g.model.Sensors.Power.Default * 1000} }),
		"DeviceGetCurrentClocksEventReasons":    throttle,
		"DeviceGetCurrentClocksThrottleReasons": throttle,
		"DeviceGetTotalEccErrors": func(q *call, t target) Ret {
			const corrected, uncorrected, aggregate = 0, 1, 1
			switch {
			case q.args[1] > uncorrected || q.args[2] > aggregate:
				return InvalidArgument
			case q.args[2] != aggregate: // those since the driver was loaded are not modelled
				return NotSupported
			case q.args[1] == corrected:
				return q.out.put(t.g.sensors.ecc.Corrected)
			}
			return q.out.put(t.g.sensors.ecc.Uncorrected)
		},
		"DeviceGetRemappedRows": func(q *call, t target) Ret {
			r, ret := t.g.rowsLocked()
			if ret != Success {
				return ret
			}
			return q.out.put(uint64(r.Corrected), uint64(r.Uncorrected), flag(r.Pending), flag(r.Failed))
		},
		"DeviceGetRowRemapperHistogram": func(q *call, t target) Ret {
			b := t.g.sensors.banks
			if t.g.model.Sensors.Banks == 0 {
				return NotSupported
			}
			return q.out.put(uint64(b.Max), uint64(b.High), uint64(b.Partial), uint64(b.Low), uint64(b.None))
		},
		"DeviceGetNvLinkErrorCounter": (*call).linkErrors,
		"DeviceGetPcieReplayCounter":  func(q *call, t target) Ret { return q.out.put(t.g.sensors.replays) },
	}
}

// linkErrors answers for one counter of one link. All errors are on the first link.
func (q *call) linkErrors(t target) Ret {
	return q.onLink(t, func(*linkEnd) Ret {
		if !t.g.countsLinkErrors() {
			return NotSupported
		}
		e := t.g.sensors.links
		if q.args[1] != 0 {
			e = gpu.NVLinkErrors{}
		}
		counters := []uint64{e.Replay, e.Recovery, e.CRC, 0, 0}
		if q.args[2] >= uint64(len(counters)) {
			return InvalidArgument
		}
		return q.out.put(counters[q.args[2]])
	})
}

// SensorUsage describes the sensors that SetSensor knows.
const SensorUsage = `temperature °C | memory-temperature °C | power W | power-limit W (as another tool sets it)
module-limit W (of the server, 0: none) | clocks SM MEMORY (MHz) | fan PERCENT
throttle none | throttle REASON … (power-cap, thermal, hardware, hardware-thermal, power-brake)
ecc CORRECTED UNCORRECTED | rows CORRECTED UNCORRECTED [pending] [failed]
banks MAX HIGH PARTIAL LOW NONE | nvlink-errors CRC REPLAY RECOVERY | pcie-replays N
recovery none | reset | reboot | drain-p2p | drain-and-reset | recover-imex | bus-reset
unfreed-memory MIB [START] (used, of no process, until a reset; START: in the MIG instance that starts there)`

// SetSensor sets a sensor or a counter of a GPU.
func (n *Node) SetSensor(id, name string, values []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.findLocked(id)
	if g == nil {
		return fmt.Errorf("cannot set a sensor of GPU %s: not found", id)
	}
	if err := g.setSensorLocked(name, values); err != nil {
		return fmt.Errorf("cannot set the sensor %s: %w", name, err)
	}
	return nil
}

// setUnfreedLocked sets the memory of no process, of the GPU or of one of its instances.
func (g *device) setUnfreedLocked(values []string, numbers func(values []string, to ...*uint64) error) error {
	var mib, start uint64
	if len(values) < 2 {
		err := numbers(values, &mib)
		if err == nil {
			g.unfreed = mib * MiB
		}
		return err
	}
	if err := numbers(values, &mib, &start); err != nil {
		return err
	}
	for _, in := range g.instances {
		if uint64(in.placement.Start) == start {
			in.unfreed = mib * MiB
			return nil
		}
	}
	return fmt.Errorf("no MIG instance starts at %d", start)
}

// set sets one of the sensors that only Sensors reads.
func (s *sensors) set(name string, values []string, numbers func(values []string, to ...*uint64) error) (err error) {
	var n [2]uint64
	switch name {
	case "module-limit":
		if err = numbers(values, &n[0]); err == nil {
			s.moduleLimit = n[0] * 1000
		}
	case "clocks":
		if err = numbers(values, &n[0], &n[1]); err == nil {
			s.clocks.SM, s.clocks.Memory = uint32(n[0]), uint32(n[1])
		}
	case "fan":
		if err = numbers(values, &n[0]); err == nil {
			s.fan = new(int(n[0]))
		}
	}
	return err
}

func (g *device) setSensorLocked(name string, values []string) error {
	s := &g.sensors
	numbers := func(values []string, to ...*uint64) error {
		if len(values) != len(to) {
			return fmt.Errorf("it has %d values, not %d", len(to), len(values))
		}
		for i, v := range values {
			n, err := strconv.ParseUint(v, 10, 32)
			if err != nil {
				return fmt.Errorf("%q is no number", v)
			}
			*to[i] = n
		}
		return nil
	}
	var n [5]uint64
	var err error
	switch name {
	case "temperature", "memory-temperature":
		if err = numbers(values, &n[0]); err == nil {
			*map[string]*int{"temperature": &s.temperature, "memory-temperature": &s.memoryTemperature}[name] = int(n[0])
		}
	case "power":
		if err = numbers(values, &n[0]); err == nil {
			s.usage = n[0] * 1000
		}
	case "unfreed-memory":
		err = g.setUnfreedLocked(values, numbers)
	case "power-limit":
		if err = numbers(values, &n[0]); err == nil {
			if ret := g.setPowerLocked(n[0] * 1000); ret != Success {
				err = ret.sentinel()
			}
		}
	case "module-limit", "clocks", "fan":
		err = s.set(name, values, numbers)
	case "throttle":
		err = s.setThrottle(values)
	case "ecc":
		err = numbers(values, &s.ecc.Corrected, &s.ecc.Uncorrected)
	case "rows":
		if err = numbers(values[:min(2, len(values))], &n[0], &n[1]); err != nil {
			break
		}
		for _, v := range values[2:] {
			if v != "pending" && v != "failed" {
				return fmt.Errorf("rows are pending or failed, not %q", v)
			}
		}
		s.rows = gpu.RemappedRows{
			Corrected: uint32(n[0]), Uncorrected: uint32(n[1]),
			Pending: slices.Contains(values, "pending"), Failed: slices.Contains(values, "failed"),
		}
	case "banks":
		if err = numbers(values, &n[0], &n[1], &n[2], &n[3], &n[4]); err == nil {
			s.banks = gpu.RowBanks{Max: uint32(n[0]), High: uint32(n[1]), Partial: uint32(n[2]), Low: uint32(n[3]), None: uint32(n[4])}
		}
	case "nvlink-errors":
		err = numbers(values, &s.links.CRC, &s.links.Replay, &s.links.Recovery)
	case "pcie-replays":
		err = numbers(values, &s.replays)
	case "recovery":
		i := slices.Index(recoveryWords, strings.Join(values, " "))
		if i < 0 {
			return fmt.Errorf("there is no such action: %s", strings.Join(values, " "))
		}
		g.recovery = i
		g.node.emitLocked(g, eventRecovery, uint64(i), none, none)
	default:
		err = errors.New("there is no such sensor: see gpusim ctl help")
	}
	return err
}

// setThrottle sets the reasons; "none" leaves an idle GPU.
func (s *sensors) setThrottle(words []string) error {
	bits := uint64(0)
	for _, w := range words {
		bit := throttleBits[w]
		if w == "none" && len(words) == 1 {
			bit = throttleIdle
		}
		if bit == 0 {
			return fmt.Errorf("there is no such reason: %s", w)
		}
		bits |= bit
	}
	if bits == 0 {
		return errors.New("name the reasons, or none")
	}
	s.throttle = bits
	return nil
}
