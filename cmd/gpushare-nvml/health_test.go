//go:build cgo

package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/test/enumeration"
)

// TestSimHealth reads the sensors of boards of three generations with an older and a newer driver, idle and in trouble.
func TestSimHealth(t *testing.T) {
	enumeration.Long(t)
	const gpus = "gpus:\n  - {model: A100-SXM4-40GB}\n  - {model: H100-SXM5-80GB}\n  - {model: RTX-PRO-6000-96GB}\n" +
		"  - {model: H100-SXM5-80GB}\n"
	for _, tt := range []struct{ driver, recovery string }{{"535", ""}, {"580", gpu.RecoveryNone}} {
		t.Run(tt.driver, func(t *testing.T) {
			n := serve(t, "driver: \""+tt.driver+"\"\n"+gpus, worker.Deadlines{})
			n.readGPUs(testContext(t))
			read := func(i int) gpu.Health {
				t.Helper()
				h, err := n.Health(testContext(t), n.gpus[i])
				if err != nil {
					t.Fatal(err)
				}
				return h
			}
			zero := uint64(0)
			idle := []gpu.Health{
				{
					Temperature: new(34), MemoryTemperature: new(41), SlowdownTemperature: new(89),
					Power:    &gpu.Power{Usage: 62_000, Limit: 400_000, Default: 400_000, Min: 100_000, Max: 400_000},
					Throttle: []string{}, ECC: &gpu.ECCErrors{}, Rows: &gpu.RemappedRows{Banks: &gpu.RowBanks{Max: 640}},
					NVLinkErrors: &gpu.NVLinkErrors{}, PCIeReplays: &zero, Recovery: tt.recovery,
				},
				{
					Temperature: new(34), MemoryTemperature: new(41),
					Power:    &gpu.Power{Usage: 62_000, Limit: 700_000, Default: 700_000, Min: 200_000, Max: 700_000},
					Throttle: []string{}, ECC: &gpu.ECCErrors{}, Rows: &gpu.RemappedRows{Banks: &gpu.RowBanks{Max: 2560}},
					NVLinkErrors: &gpu.NVLinkErrors{}, PCIeReplays: &zero, Recovery: tt.recovery,
				},
				{
					Temperature: new(34),
					Throttle:    []string{},
					ECC:         &gpu.ECCErrors{},
					Rows:        &gpu.RemappedRows{},
					PCIeReplays: &zero,
					Recovery:    tt.recovery,
				},
			}
			for i, want := range idle {
				if diff := cmp.Diff(want, read(i)); diff != "" {
					t.Errorf("GPU %d (-want +got):\n%s", i, diff)
				}
			}

			for _, s := range [][]string{
				{"temperature", "91"},
				{"memory-temperature", "99"},
				{"power", "395"},
				{"throttle", "hardware-thermal", "hardware", "power-cap"},
				{"ecc", "353", "2"},
				{"rows", "1", "2", "pending", "failed"},
				{"banks", "637", "2", "0", "1", "0"},
				{"nvlink-errors", "3", "2", "1"},
				{"pcie-replays", "12"},
				{"recovery", "drain-and-reset"},
			} {
				n.ctl(append([]string{"sensor", "0"}, s...)...)
			}
			want := gpu.Health{
				Temperature: new(91), MemoryTemperature: new(99), SlowdownTemperature: new(89),
				Power:    &gpu.Power{Usage: 395_000, Limit: 400_000, Default: 400_000, Min: 100_000, Max: 400_000},
				Throttle: []string{gpu.ThrottleHardware, gpu.ThrottleHardwareThermal, gpu.ThrottlePowerCap},
				ECC:      &gpu.ECCErrors{Corrected: 353, Uncorrected: 2},
				Rows: &gpu.RemappedRows{
					Corrected: 1, Uncorrected: 2, Pending: true, Failed: true, Banks: &gpu.RowBanks{Max: 637, High: 2, Low: 1},
				},
				NVLinkErrors: &gpu.NVLinkErrors{}, PCIeReplays: new(uint64(12)), // The links were read in the last minute.
			}
			if tt.recovery != "" {
				want.Recovery = gpu.RecoveryDrainAndReset
			}
			if diff := cmp.Diff(want, read(0)); diff != "" {
				t.Errorf("in trouble (-want +got):\n%s", diff)
			}

			// A part that the driver refuses is missing, one that fails is an error, and so is a lost GPU.
			n.ctl("fault", "add", "DeviceGetTotalEccErrors", "fail", "--code", "3", "--gpu", "1")
			if h := read(1); h.ECC != nil || h.Rows == nil {
				t.Errorf("without ECC: %+v", h)
			}
			// What the board sets was not read of the last one before.
			n.ctl("fault", "add", "DeviceGetPowerManagementLimitConstraints", "fail", "--code", "16", "--gpu", "3")
			if h := read(3); h.Power != nil || h.Temperature == nil {
				t.Errorf("before a reset: %+v", h)
			}
			if h := read(3); h.Power == nil || h.Power.Min != 200_000 {
				t.Errorf("when the range of the limit can be read again: %+v", h)
			}
			n.ctl("fault", "add", "DeviceGetPcieReplayCounter", "fail", "--code", "999", "--gpu", "1")
			if _, err := n.Health(testContext(t), n.gpus[1]); !errors.Is(err, gpu.ErrUnknown) {
				t.Errorf("a failed call: %v", err)
			}
			n.ctl("fault", "add", "DeviceGetRemappedRows", "fail", "--code", "15", "--gpu", "1")
			if _, err := n.Health(testContext(t), n.gpus[1]); !errors.Is(err, gpu.ErrLost) {
				t.Errorf("lost GPU: %v", err)
			}
		})
	}
}

// TestSimNVLinkErrors reads the counters of all links of a GPU.
func TestSimNVLinkErrors(t *testing.T) {
	n := serve(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB}]\n", worker.Deadlines{})
	n.readGPUs(testContext(t))
	n.ctl("sensor", "0", "nvlink-errors", "7", "8", "9")
	h, err := n.Health(testContext(t), n.gpus[0])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&gpu.NVLinkErrors{CRC: 7, Replay: 8, Recovery: 9}, h.NVLinkErrors); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSimHealthWithInstances: the driver does not report replaced rows while the GPU has instances.
func TestSimHealthWithInstances(t *testing.T) {
	n := serve(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB, layout: [3g.20gb@0]}]\n", worker.Deadlines{})
	n.readGPUs(testContext(t))
	if h, err := n.Health(testContext(t), n.gpus[0]); err != nil || h.Rows != nil || h.ECC == nil || h.Power == nil {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestSimHealthIsOneMessage counts messages and calls: the second reading knows the handle, and within a minute what the links counted
// and what the board sets.
func TestSimHealthIsOneMessage(t *testing.T) {
	n := serve(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB}]\n", worker.Deadlines{})
	n.readGPUs(testContext(t))
	total := func() (sum uint64) {
		for _, k := range n.calls() {
			sum += uint64(k)
		}
		return sum
	}
	read := func() (messages, calls uint64) {
		t.Helper()
		m, c := n.Stats().Messages, total()
		if _, err := n.Health(testContext(t), n.gpus[0]); err != nil {
			t.Fatal(err)
		}
		return n.Stats().Messages - m, total() - c
	}
	if m, c := read(); m != 1 || c != 1+13+36+12*4 {
		t.Errorf("the first reading: %d messages, %d calls", m, c)
	}
	if m, c := read(); m != 1 || c != 10 {
		t.Errorf("the second reading: %d messages, %d calls", m, c)
	}
}

// TestSimPowerLimit sets, refuses and forgets a limit.
func TestSimPowerLimit(t *testing.T) {
	n := serve(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB}, {model: RTX-PRO-6000-96GB}]\n", worker.Deadlines{})
	n.readGPUs(testContext(t))
	ctx, id := testContext(t), n.gpus[0]
	limit := func(want uint64, when string) {
		t.Helper()
		if h, err := n.Health(testContext(t), id); err != nil || h.Power == nil || h.Power.Limit != want {
			t.Errorf("%s: %+v, %v; want %d mW", when, h.Power, err, want)
		}
	}
	before := n.Stats().Writes
	if err := n.SetPowerLimit(ctx, id, 300_000); err != nil || n.Stats().Writes != before+1 {
		t.Errorf("%v, %d writes", err, n.Stats().Writes-before)
	}
	limit(300_000, "set")
	for _, bad := range []uint64{99_999, 400_001, 1 << 32} {
		if err := n.SetPowerLimit(ctx, id, bad); !errors.Is(err, gpu.ErrInvalid) {
			t.Errorf("%d mW: %v; want ErrInvalid", bad, err)
		}
	}
	limit(300_000, "after refused ones")
	n.ctl("sensor", "0", "power-limit", "250")
	limit(250_000, "set by another tool")
	if err := n.SetPowerLimit(ctx, n.gpus[1], 300_000); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("a board without a limit: %v", err)
	}
	n.ctl("fault", "add", "DeviceSetPowerManagementLimit", "fail", "--code", "4")
	if err := n.SetPowerLimit(ctx, id, 300_000); !errors.Is(err, gpu.ErrDenied) {
		t.Errorf("a refused call: %v", err)
	}
	n.ctl("driver-reload", "--force")
	limit(400_000, "after a driver load")
}

// TestSimHealthLackingSymbols reads with a library that has only some of the functions.
func TestSimHealthLackingSymbols(t *testing.T) {
	n := serve(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB}]\n", worker.Deadlines{})
	start := lackingClients(t, n)
	all := exported(t, "580")
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(names, s) })
	}
	read := func(t *testing.T, symbols []string) (*worker.Client, gpu.UUID, gpu.Health) {
		t.Helper()
		c := start(t, symbols)
		info, err := c.Node(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		h, err := c.Health(testContext(t), info.GPUs[0].UUID)
		if err != nil {
			t.Fatal(err)
		}
		return c, info.GPUs[0].UUID, h
	}
	_, _, whole := read(t, all)
	for _, tt := range []struct {
		name  string
		lacks []string
		want  func(*gpu.Health)
	}{
		{"the newer name of the reasons", []string{"nvmlDeviceGetCurrentClocksEventReasons"}, func(*gpu.Health) {}},
		{"both names", []string{"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"}, func(h *gpu.Health) { h.Throttle = nil }},
		{"temperature", []string{"nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold"}, func(h *gpu.Health) { h.Temperature, h.SlowdownTemperature = nil, nil }},
		{"the range of the limit", []string{"nvmlDeviceGetPowerManagementLimitConstraints"}, func(h *gpu.Health) { h.Power = nil }},
		{"ECC", []string{"nvmlDeviceGetTotalEccErrors"}, func(h *gpu.Health) { h.ECC = nil }},
		{"rows", []string{"nvmlDeviceGetRemappedRows"}, func(h *gpu.Health) { h.Rows = nil }},
		{"banks", []string{"nvmlDeviceGetRowRemapperHistogram"}, func(h *gpu.Health) { h.Rows.Banks = nil }},
		{"counters of links", []string{"nvmlDeviceGetNvLinkErrorCounter"}, func(h *gpu.Health) { h.NVLinkErrors = nil }},
		{"replays", []string{"nvmlDeviceGetPcieReplayCounter"}, func(h *gpu.Health) { h.PCIeReplays = nil }},
		{"fields", []string{"nvmlDeviceGetFieldValues"}, func(h *gpu.Health) { h.MemoryTemperature, h.Recovery = nil, "" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, got := read(t, without(tt.lacks...))
			want := whole
			if whole.Rows != nil {
				want.Rows = new(*whole.Rows)
			}
			tt.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("all", func(t *testing.T) {
		c, id, h := read(t, essential)
		if diff := cmp.Diff(gpu.Health{}, h); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if err := c.SetPowerLimit(testContext(t), id, 300_000); !errors.Is(err, gpu.ErrMissing) {
			t.Errorf("%v; want ErrMissing", err)
		}
	})
}
