//go:build cgo

package nvml

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
)

// The counters of the links are read each minute, and at once after the GPU was partitioned or reset.
func TestLinkErrorsAreReadEachMinute(t *testing.T) {
	now := time.Now()
	v := device{}
	for _, c := range []struct {
		name  string
		after time.Duration
		want  bool
	}{
		{"before the first reading", 0, false},
		{"after ten seconds", 10 * time.Second, true},
		{"just before a minute", time.Minute - 1, true},
		{"after a minute", time.Minute, false},
	} {
		if got := v.linkErrors.known(now.Add(c.after), keptFor); got != c.want {
			t.Errorf("%s: known is %v", c.name, got)
		}
		if c.after == 0 {
			v.linkErrors.readAt = now
		}
	}
	v.invalidate()
	if v.linkErrors.known(now, keptFor) {
		t.Error("they are known after the GPU was partitioned")
	}
}

// sensorCalls is a GPU that counts the calls of its sensors. Every value is the number of the call of its kind.
func sensorCalls(calls map[string]int) *mock.Device {
	call := func(name string) uint32 {
		calls[name]++
		return uint32(calls[name])
	}
	return &mock.Device{
		GetTemperatureFunc: func(nvml.TemperatureSensors) (uint32, nvml.Return) { return call("temperature"), nvml.SUCCESS },
		GetTemperatureThresholdFunc: func(nvml.TemperatureThresholds) (uint32, nvml.Return) {
			return call("threshold"), nvml.SUCCESS
		},
		GetPowerUsageFunc:           func() (uint32, nvml.Return) { return call("power"), nvml.SUCCESS },
		GetPowerManagementLimitFunc: func() (uint32, nvml.Return) { return call("power limit"), nvml.SUCCESS },
		GetPowerManagementLimitConstraintsFunc: func() (uint32, uint32, nvml.Return) {
			n := call("power range")
			return n, n + 1, nvml.SUCCESS
		},
		GetPowerManagementDefaultLimitFunc: func() (uint32, nvml.Return) { return call("power default"), nvml.SUCCESS },
		GetCurrentClocksEventReasonsFunc:   func() (uint64, nvml.Return) { call("throttle"); return 0, nvml.SUCCESS },
		GetTotalEccErrorsFunc: func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
			return uint64(call("ECC")), nvml.SUCCESS
		},
		GetRemappedRowsFunc: func() (int, int, bool, bool, nvml.Return) { call("rows"); return 0, 0, false, false, nvml.SUCCESS },
		GetRowRemapperHistogramFunc: func() (nvml.RowRemapperHistogramValues, nvml.Return) {
			call("banks")
			return nvml.RowRemapperHistogramValues{}, nvml.SUCCESS
		},
		GetNvLinkErrorCounterFunc: func(int, nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
			return 0, nvml.ERROR_NOT_SUPPORTED
		},
		GetPcieReplayCounterFunc: func() (int, nvml.Return) { return int(call("PCIe")), nvml.SUCCESS },
		GetFieldValuesFunc:       func([]nvml.FieldValue) nvml.Return { call("fields"); return nvml.SUCCESS },
		GetEnforcedPowerLimitFunc: func() (uint32, nvml.Return) {
			return call("enforced limit"), nvml.SUCCESS
		},
		GetClockInfoFunc:    func(nvml.ClockType) (uint32, nvml.Return) { return call("clock"), nvml.SUCCESS },
		GetMaxClockInfoFunc: func(nvml.ClockType) (uint32, nvml.Return) { return call("clock max"), nvml.SUCCESS },
		GetFanSpeedFunc:     func() (uint32, nvml.Return) { return call("fan"), nvml.SUCCESS },
	}
}

// What the board sets is read each minute, and what the health and the sensors have in common once for both. All that changes is read
// each time.
func TestSensorsAreNotReadTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := map[string]int{}
		v := &device{id: "GPU-1", handle: sensorCalls(calls)}
		d := &Driver{symbols: everySymbol(t), devices: map[gpu.UUID]*device{"GPU-1": v}}
		read := func(pause time.Duration) (h gpu.Health, s gpu.Sensors, more map[string]int) {
			before := maps.Clone(calls)
			h, err := d.Health(t.Context(), "GPU-1")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(pause)
			if s, err = d.Sensors(t.Context(), "GPU-1"); err != nil {
				t.Fatal(err)
			}
			more = maps.Clone(calls)
			for name := range more {
				if more[name] -= before[name]; more[name] == 0 {
					delete(more, name)
				}
			}
			return h, s, more
		}
		each := map[string]int{
			"temperature": 1, "power": 1, "power limit": 1, "throttle": 1, "ECC": 2, "rows": 1, "banks": 1, "PCIe": 1, "fields": 1,
			"enforced limit": 1, "clock": 2, "fan": 1,
		}
		first := maps.Clone(each)
		maps.Copy(first, map[string]int{"threshold": 1, "power range": 1, "power default": 1, "clock max": 1})
		_, _, more := read(sharedFor - 1)
		if diff := cmp.Diff(first, more); diff != "" {
			t.Errorf("the first readings (-want +got):\n%s", diff)
		}
		time.Sleep(10 * time.Second)
		h, s, more := read(sharedFor - 1)
		if diff := cmp.Diff(each, more); diff != "" {
			t.Errorf("the next readings (-want +got):\n%s", diff)
		}
		want := gpu.Power{Usage: 2, Limit: 2, Default: 1, Min: 1, Max: 2}
		if diff := cmp.Diff(&want, h.Power); diff != "" || *h.SlowdownTemperature != 1 || *h.Temperature != 2 {
			t.Errorf("the health has %d °C of %d, and of the power (-want +got):\n%s", *h.Temperature, *h.SlowdownTemperature, diff)
		}
		if *s.Temperature != 2 || *s.PowerUsage != 2 || s.Clocks.MaxSM != 1 || s.Clocks.Memory != 4 {
			t.Errorf("the sensors have %d °C, %d mW, %+v", *s.Temperature, *s.PowerUsage, *s.Clocks)
		}
		time.Sleep(10 * time.Second)
		_, s, more = read(sharedFor)
		for _, name := range []string{"temperature", "power", "throttle", "fields"} {
			if more[name] != 2 {
				t.Errorf("%s was read %d times for the health, and for sensors that are requested later", name, more[name])
			}
		}
		if *s.Temperature != 4 {
			t.Errorf("sensors that are requested later have the temperature of reading %d", *s.Temperature)
		}
		time.Sleep(keptFor)
		if _, _, more = read(0); more["threshold"] != 1 || more["power range"] != 1 || more["clock max"] != 1 {
			t.Errorf("after a minute were more %v", more)
		}
		v.invalidate()
		v.stale = false // It has its handle.
		if _, _, more = read(0); more["threshold"] != 1 || more["power range"] != 1 || more["clock max"] != 1 {
			t.Errorf("after the GPU was partitioned were more %v", more)
		}
	})
}
