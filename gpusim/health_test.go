package gpusim_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
)

// TestPortAndLibraryReportTheSame compares the port with the library's calls, for every field of one reading.
func TestPortAndLibraryReportTheSame(t *testing.T) {
	n := node(t, nil, "A100-SXM4-40GB")
	for sensor, values := range map[string]string{
		"temperature": "91", "memory-temperature": "99", "power": "395", "power-limit": "250", "throttle": "hardware thermal", "ecc": "3 2",
		"rows": "4 5 pending failed", "banks": "9 8 7 6 5", "nvlink-errors": "7 8 9", "pcie-replays": "12", "recovery": "drain-p2p",
		"module-limit": "240", "clocks": "1155 1215", "fan": "55",
	} {
		if err := n.SetSensor("0", sensor, strings.Fields(values)); err != nil {
			t.Fatal(err)
		}
	}
	d := n.Driver(1)
	id := n.View(0).GPUs[0].Identity.UUID
	got, err := d.Health(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n.View(0).GPUs[0].Health, &got); diff != "" {
		t.Errorf("the truth (-want +got):\n%s", diff)
	}
	now, err := d.Sensors(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	l := library(t, n, false)
	dev := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
	for _, c := range []struct {
		call string
		args []uint64
		want []uint64
	}{
		{"nvmlDeviceGetTemperature", []uint64{0}, []uint64{uint64(*got.Temperature)}},
		{"nvmlDeviceGetTemperatureThreshold", []uint64{1}, []uint64{uint64(*got.SlowdownTemperature)}},
		{"nvmlDeviceGetPowerUsage", nil, []uint64{got.Power.Usage}},
		{"nvmlDeviceGetPowerManagementLimit", nil, []uint64{got.Power.Limit}},
		{"nvmlDeviceGetPowerUsage", nil, []uint64{*now.PowerUsage}},
		{"nvmlDeviceGetEnforcedPowerLimit", nil, []uint64{*now.PowerLimit}},
		{"nvmlDeviceGetClockInfo", []uint64{1}, []uint64{uint64(now.Clocks.SM)}},
		{"nvmlDeviceGetClockInfo", []uint64{2}, []uint64{uint64(now.Clocks.Memory)}},
		{"nvmlDeviceGetMaxClockInfo", []uint64{1}, []uint64{uint64(now.Clocks.MaxSM)}},
		{"nvmlDeviceGetFanSpeed", nil, []uint64{uint64(*now.Fan)}},
		{"nvmlDeviceGetPowerManagementLimitConstraints", nil, []uint64{got.Power.Min, got.Power.Max}},
		{"nvmlDeviceGetPowerManagementDefaultLimit", nil, []uint64{got.Power.Default}},
		{"nvmlDeviceGetCurrentClocksEventReasons", nil, []uint64{0x28}},
		{"nvmlDeviceGetTotalEccErrors", []uint64{0, 1}, []uint64{got.ECC.Corrected}},
		{"nvmlDeviceGetTotalEccErrors", []uint64{1, 1}, []uint64{got.ECC.Uncorrected}},
		{"nvmlDeviceGetRemappedRows", nil, []uint64{4, 5, 1, 1}},
		{"nvmlDeviceGetRowRemapperHistogram", nil, []uint64{9, 8, 7, 6, 5}},
		{"nvmlDeviceGetNvLinkErrorCounter", []uint64{0, 0}, []uint64{got.NVLinkErrors.Replay}},
		{"nvmlDeviceGetNvLinkErrorCounter", []uint64{0, 1}, []uint64{got.NVLinkErrors.Recovery}},
		{"nvmlDeviceGetNvLinkErrorCounter", []uint64{0, 2}, []uint64{got.NVLinkErrors.CRC}},
		{"nvmlDeviceGetPcieReplayCounter", nil, []uint64{*got.PCIeReplays}},
		{"nvmlDeviceGetFieldValues", []uint64{82, 230}, []uint64{0, 1, uint64(*got.MemoryTemperature), 0, 1, 3}},
	} {
		if diff := cmp.Diff(c.want, l.reply(c.call, append([]uint64{dev}, c.args...)...).Values); diff != "" {
			t.Errorf("%s%v (-want +got):\n%s", c.call, c.args, diff)
		}
	}
	if ret := l.ret("nvmlDeviceSetPowerManagementLimit", dev, 300_000); ret != gpusim.NoPermission {
		t.Errorf("an ordinary user sets the limit: %d", ret)
	}
}

// TestSensorsAfterAReset: a reset applies the rows that waited and forgets the limit; a driver load also begins its counters at 0.
func TestSensorsAfterAReset(t *testing.T) {
	n := node(t, nil, "A100-SXM4-40GB")
	set := func(sensor, values string) {
		t.Helper()
		if err := n.SetSensor("0", sensor, strings.Fields(values)); err != nil {
			t.Fatal(err)
		}
	}
	set("rows", "1 2 pending")
	set("power-limit", "250")
	set("pcie-replays", "12")
	set("ecc", "3 2")
	set("recovery", "reset")
	if _, err := n.OpenContext(gpusim.ContextSpec{PID: 7, Device: "0"}); err == nil {
		t.Error("a GPU that needs a reset takes a context")
	}
	if err := n.ResetGPU("0", 1); err != nil {
		t.Fatal(err)
	}
	h := n.View(0).GPUs[0].Health
	if h.Rows.Pending || h.Rows.Uncorrected != 2 || h.Power.Limit != 400_000 || *h.PCIeReplays != 12 || h.Recovery != gpu.RecoveryNone {
		t.Errorf("after a reset: %+v, %+v, %+v", h, h.Rows, h.Power)
	}
	set("power-limit", "250")
	set("recovery", "drain-and-reset")
	c, err := n.OpenContext(gpusim.ContextSpec{PID: 7, Device: "0"})
	if err != nil {
		t.Fatalf("a GPU that is drained takes no context: %v", err)
	}
	c.Close()
	n.Reboot()
	h = n.View(0).GPUs[0].Health
	if h.Power.Limit != 400_000 || *h.PCIeReplays != 0 || h.ECC.Corrected != 3 || h.Recovery != gpu.RecoveryNone {
		t.Errorf("after a boot: %+v, %+v", h, h.Power)
	}
}

func TestSensorsThatAreRefused(t *testing.T) {
	n := node(t, nil, "A100-SXM4-40GB", "A30-24GB")
	for command, says := range map[string]string{
		"9 temperature 30": "not found", "0 mood good": "no such sensor", "0 temperature hot": `"hot" is no number`, "0 temperature": "it has 1 values, not 0",
		"0 throttle lazy": "no such reason: lazy", "0 throttle none hardware": "no such reason: none", "0 rows 1 2 maybe": "pending or failed", "0 rows 1": "it has 2 values, not 1",
		"0 recovery pray": "no such action: pray", "0 power-limit 99": "invalid", "0 power-limit 401": "invalid", "1 power-limit 100": "not supported",
	} {
		w := strings.Fields(command)
		if err := n.SetSensor(w[0], w[1], w[2:]); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %s", command, err, says)
		}
	}
	d := n.Driver(1)
	if err := d.SetPowerLimit(t.Context(), n.View(0).GPUs[1].Identity.UUID, 150_000); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("a board without a limit: %v", err)
	}
}
