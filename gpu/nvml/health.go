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
		if t, ret := r.v.handle.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN); r.got(ret) {
			out.SlowdownTemperature = new(int(t))
		}
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
	low, high, ret := r.v.handle.GetPowerManagementLimitConstraints()
	if !r.got(ret) {
		return
	}
	standard, ret := r.v.handle.GetPowerManagementDefaultLimit()
	if r.got(ret) {
		out.Power = &gpu.Power{Usage: uint64(usage), Limit: uint64(limit), Default: uint64(standard), Min: uint64(low), Max: uint64(high)}
	}
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

// linkErrorsInterval is the time between two readings of the NVLinks' counters: they are four calls for each of up to 18 links, most of
// all calls of a reading, and are compared by the hour.
const linkErrorsInterval = time.Minute

// linkErrors are the counters of the NVLinks as they were last read.
type linkErrors struct {
	readAt time.Time // zero: not yet
	sum    gpu.NVLinkErrors
}

// known reports whether they need not be read again.
func (l *linkErrors) known(now time.Time) bool {
	return !l.readAt.IsZero() && now.Sub(l.readAt) < linkErrorsInterval
}

// nvLinkErrors adds up the counters of all links. Which links have counters is read once: the numbers may have gaps, and each
// question costs a call. Drivers do not report these counters from Blackwell on.
func (r *reading) nvLinkErrors(out *gpu.Health) {
	if !r.can(nvLinkErrors) {
		return
	}
	now := time.Now()
	if r.v.linkErrors.known(now) {
		out.NVLinkErrors = new(r.v.linkErrors.sum)
		return
	}
	links := r.v.countedLinks
	if links == nil {
		links = []int{}
		for link := range nvml.NVLINK_MAX_LINKS {
			if _, ret := r.v.handle.GetNvLinkErrorCounter(link, nvml.NVLINK_ERROR_DL_REPLAY); r.got(ret) {
				links = append(links, link)
			}
		}
		if r.ret != nvml.SUCCESS {
			return
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
				return // a sum without a link would be wrong
			}
			*c.to += n
		}
	}
	if len(links) > 0 {
		r.v.linkErrors = linkErrors{readAt: now, sum: sum}
		out.NVLinkErrors = &sum
	}
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
