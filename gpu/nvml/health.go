//go:build cgo

package nvml

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// reading reads sensors of one GPU one after the other, until one fails.
type reading struct {
	d   *Driver
	v   *device
	ret nvml.Return
	// shared are the sensors of a reading of the health a moment ago; nil: there was none.
	shared *healthSensors
}

// got reports whether a call has a value. A code that means that there is none is no error. A GPU that waits for its reset answers
// some calls with that code: the others still say what is wrong with it.
func (r *reading) got(ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS:
		return true
	case absent(ret), ret == nvml.ERROR_INVALID_ARGUMENT, ret == nvml.ERROR_NO_PERMISSION, ret == nvml.ERROR_RESET_REQUIRED:
	case r.ret == nvml.SUCCESS:
		r.ret = ret
	}
	return false
}

// can reports whether the library has the calls of a feature and nothing failed before.
func (r *reading) can(f feature) bool { return r.ret == nvml.SUCCESS && r.d.symbols.has(f) }

// Health implements gpu.Driver.
func (d *Driver) Health(ctx context.Context, id gpu.UUID) (gpu.Health, error) {
	const op = "read the health"
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return gpu.Health{}, err
	}
	defer v.mu.Unlock()
	r := &reading{d: d, v: v}
	now := time.Now()
	var out gpu.Health
	for _, part := range []func(*gpu.Health){r.temperatures, r.power, r.throttle, r.ecc, r.rows, r.nvLinkErrors, r.pcie, r.fields} {
		if err := ctx.Err(); err != nil {
			return gpu.Health{}, refuse(op, id, fmt.Errorf("%w: %w", gpu.ErrTimeout, err))
		}
		part(&out)
		if r.ret != nvml.SUCCESS {
			return gpu.Health{}, v.failed(op, r.ret)
		}
	}
	v.health = kept[healthSensors]{now, sensorsOf(&out)}
	return out, nil
}

// temperature reads that of the GPU. The newer call is in no library before R570, and reads the same sensor.
func (r *reading) temperature() *int {
	if !r.can(temperature) {
		return nil
	}
	t, ret := r.v.handle.GetTemperature(nvml.TEMPERATURE_GPU)
	if !r.got(ret) {
		return nil
	}
	return new(int(t))
}

func (r *reading) temperatures(out *gpu.Health) {
	out.Temperature = r.temperature()
	if r.can(temperatureThreshold) {
		out.SlowdownTemperature = r.v.slowdown.read(func() (*int, bool) {
			t, ret := r.v.handle.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
			return new(int(t)), r.got(ret)
		})
	}
}

// power reads all values or none: a limit without its range cannot be used.
func (r *reading) power(out *gpu.Health) {
	if !r.can(readPower) {
		return
	}
	usage, ret := r.v.handle.GetPowerUsage()
	if !r.got(ret) {
		return
	}
	limit, ret := r.v.handle.GetPowerManagementLimit()
	if !r.got(ret) {
		return
	}
	if p := r.v.power.read(r.powerRange); p != nil {
		out.Power = &gpu.Power{Usage: uint64(usage), Limit: uint64(limit), Default: p.standard, Min: p.low, Max: p.high}
	}
}

// powerRange is what a power limit can be, in mW.
type powerRange struct{ low, high, standard uint64 }

func (r *reading) powerRange() (*powerRange, bool) {
	low, high, ret := r.v.handle.GetPowerManagementLimitConstraints()
	if !r.got(ret) {
		return nil, false
	}
	standard, ret := r.v.handle.GetPowerManagementDefaultLimit()
	return &powerRange{uint64(low), uint64(high), uint64(standard)}, r.got(ret)
}

func (r *reading) throttle(out *gpu.Health) { out.Throttle = r.throttleReasons() }

// throttleReasons calls the function that the library has: drivers before R535 have only the one with the older name.
func (r *reading) throttleReasons() []string {
	if !r.can(clockReasons) {
		return nil
	}
	read := r.v.handle.GetCurrentClocksEventReasons
	if name, _ := r.d.symbols.call("nvmlDeviceGetCurrentClocksEventReasons"); name != "nvmlDeviceGetCurrentClocksEventReasons" {
		read = r.v.handle.GetCurrentClocksThrottleReasons // the only one in older libraries
	}
	mask, ret := read()
	if !r.got(ret) {
		return nil
	}
	return throttleReasons(mask)
}

// throttleReasons names the reasons that are trouble, sorted.
func throttleReasons(mask uint64) []string {
	out := []string{}
	for bit, word := range map[uint64]string{
		nvml.ClocksEventReasonSwPowerCap: gpu.ThrottlePowerCap, nvml.ClocksEventReasonSwThermalSlowdown: gpu.ThrottleThermal,
		nvml.ClocksThrottleReasonHwSlowdown: gpu.ThrottleHardware, nvml.ClocksThrottleReasonHwThermalSlowdown: gpu.ThrottleHardwareThermal,
		nvml.ClocksThrottleReasonHwPowerBrakeSlowdown: gpu.ThrottlePowerBrake,
	} {
		if mask&bit != 0 {
			out = append(out, word)
		}
	}
	slices.Sort(out)
	return out
}

func (r *reading) ecc(out *gpu.Health) {
	if !r.can(eccErrors) {
		return
	}
	corrected, ret := r.v.handle.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC)
	if !r.got(ret) {
		return
	}
	uncorrected, ret := r.v.handle.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC)
	if r.got(ret) {
		out.ECC = &gpu.ECCErrors{Corrected: corrected, Uncorrected: uncorrected}
	}
}

// rows reads the replaced rows. The driver does not report them while the GPU has MIG instances (nvml.h).
func (r *reading) rows(out *gpu.Health) {
	if !r.can(remappedRows) {
		return
	}
	corrected, uncorrected, pending, failed, ret := r.v.handle.GetRemappedRows()
	if !r.got(ret) {
		return
	}
	out.Rows = &gpu.RemappedRows{Corrected: uint32(corrected), Uncorrected: uint32(uncorrected), Pending: pending, Failed: failed}
	if !r.can(rowBanks) {
		return
	}
	if b, ret := r.v.handle.GetRowRemapperHistogram(); r.got(ret) {
		out.Rows.Banks = &gpu.RowBanks{Max: b.Max, High: b.High, Partial: b.Partial, Low: b.Low, None: b.None}
	}
}

// nvLinkErrors adds up the counters of all links. Which links have counters is read once: the numbers may have gaps, and each
// question costs a call. Drivers do not report these counters from Blackwell on.
func (r *reading) nvLinkErrors(out *gpu.Health) {
	if !r.can(nvLinkErrors) {
		return
	}
	out.NVLinkErrors = r.v.linkErrors.read(r.sumOfLinkErrors)
}

func (r *reading) sumOfLinkErrors() (*gpu.NVLinkErrors, bool) {
	links := r.v.countedLinks
	if links == nil {
		links = []int{}
		for link := range nvml.NVLINK_MAX_LINKS {
			if _, ret := r.v.handle.GetNvLinkErrorCounter(link, nvml.NVLINK_ERROR_DL_REPLAY); r.got(ret) {
				links = append(links, link)
			}
		}
		if r.ret != nvml.SUCCESS {
			return nil, false
		}
		r.v.countedLinks = links
	}
	var sum gpu.NVLinkErrors
	counters := []struct {
		counter nvml.NvLinkErrorCounter
		to      *uint64
	}{
		{nvml.NVLINK_ERROR_DL_REPLAY, &sum.Replay},
		{nvml.NVLINK_ERROR_DL_RECOVERY, &sum.Recovery},
		{nvml.NVLINK_ERROR_DL_CRC_FLIT, &sum.CRC},
		{nvml.NVLINK_ERROR_DL_CRC_DATA, &sum.CRC},
	}
	for _, link := range links {
		for _, c := range counters {
			n, ret := r.v.handle.GetNvLinkErrorCounter(link, c.counter)
			if !r.got(ret) {
				return nil, false // a sum without a link would be wrong
			}
			*c.to += n
		}
	}
	return &sum, len(links) > 0
}

func (r *reading) pcie(out *gpu.Health) {
	if !r.can(pcieReplays) {
		return
	}
	if n, ret := r.v.handle.GetPcieReplayCounter(); r.got(ret) {
		out.PCIeReplays = new(uint64(n))
	}
}

// fields reads what only the list of fields has.
func (r *reading) fields(out *gpu.Health) {
	if !r.can(fieldValues) {
		return
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_MEMORY_TEMP}, {FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := r.v.handle.GetFieldValues(values); !r.got(ret) {
		return
	}
	if t, ok := fieldNumber(values[0]); ok && t <= math.MaxInt32 {
		out.MemoryTemperature = new(int(t))
	}
	if action, ok := fieldNumber(values[1]); ok {
		out.Recovery = recovery(action)
	}
}

// recovery names an action. Newer drivers know more of them.
func recovery(action uint64) string {
	switch nvml.DeviceGpuRecoveryAction(action) {
	case nvml.GPU_RECOVERY_ACTION_NONE:
		return gpu.RecoveryNone
	case nvml.GPU_RECOVERY_ACTION_GPU_RESET:
		return gpu.RecoveryReset
	case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT, nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:
		return gpu.RecoveryReboot
	case nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:
		return gpu.RecoveryDrainP2P
	case nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return gpu.RecoveryDrainAndReset
	case nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN:
		return gpu.RecoveryIMEX
	case nvml.GPU_RECOVERY_ACTION_BUS_RESET:
		return gpu.RecoveryBusReset
	}
	return fmt.Sprintf("action-%d", action)
}

// SetPowerLimit implements gpu.Driver.
func (d *Driver) SetPowerLimit(ctx context.Context, id gpu.UUID, milliwatts uint64) error {
	const op = "set the power limit"
	switch {
	case !d.symbols.has(setPower):
		return refuse(op, id, gpu.ErrMissing)
	case milliwatts > math.MaxUint32:
		return refuse(op, id, gpu.ErrInvalid)
	}
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return err
	}
	defer v.mu.Unlock()
	return v.failed(op, v.handle.SetPowerManagementLimit(uint32(milliwatts)))
}
