//go:build cgo

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/test/enumeration"
)

// TestSimGenerations runs every operation of the worker on one board behind the libraries of five driver branches. What a branch
// lacks is missing in the answers, and no error.
func TestSimGenerations(t *testing.T) {
	enumeration.Long(t)
	for _, tt := range []struct {
		driver, version string
		cuda            int
		lacks           []string // among others
		has             []string
		recovery        string
		reserved        bool // the library counts reserved memory apart
	}{
		{
			driver: "470", version: "470.256.02", cuda: 11040,
			lacks: []string{"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpuInstanceCreateComputeInstanceWithPlacement", "nvmlDeviceGetComputeRunningProcesses_v3"},
			has:   []string{"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetRowRemapperHistogram"},
		},
		{
			driver: "535", version: "535.183.01", cuda: 12020, reserved: true,
			lacks: []string{"nvmlDeviceGetProcessesUtilizationInfo"},
			has:   []string{"nvmlDeviceGetMemoryInfo_v2", "nvmlGpuInstanceCreateComputeInstanceWithPlacement"},
		},
		{
			driver: "550", version: "550.163.01", cuda: 12040, reserved: true, lacks: []string{"nvmlDeviceSetMemoryLimits_v1"},
			has: []string{"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetProcessesUtilizationInfo"},
		},
		{driver: "580", version: "580.95.05", cuda: 13000, reserved: true, recovery: gpu.RecoveryNone, lacks: []string{"nvmlDeviceSetMemoryLimits_v1"}},
		{driver: "615", version: "615.10", cuda: 13040, reserved: true, recovery: gpu.RecoveryNone, has: []string{"nvmlDeviceSetMemoryLimits_v1"}},
	} {
		t.Run(tt.driver, func(t *testing.T) {
			n := serve(
				t, "driver: \""+tt.driver+"\"\ngpus: [{model: A100-SXM4-40GB, mig: true}, {model: A100-SXM4-40GB}]\n",
				worker.Deadlines{},
			)
			ctx := testContext(t)
			info := n.readGPUs(ctx)
			if info.DriverVersion != tt.version || info.CUDAVersion != tt.cuda || len(info.GPUs) != 2 {
				t.Errorf("node %+v", info)
			}
			for _, name := range tt.lacks {
				if !slices.Contains(info.Missing, name) {
					t.Errorf("%s is not missing: %q", name, info.Missing)
				}
			}
			for _, name := range tt.has {
				if slices.Contains(info.Missing, name) {
					t.Errorf("%s is missing", name)
				}
			}
			s, err := n.Snapshot(ctx, n.gpus[0])
			if err != nil || !s.MIG.Current || (s.Memory.Reserved > 0) != tt.reserved ||
				s.Memory.Total != s.Memory.Reserved+s.Memory.Used+s.Memory.Free {
				t.Errorf("snapshot %+v, %v", s, err)
			}
			h, err := n.Health(ctx, n.gpus[1])
			want := gpu.Health{
				Temperature: new(34), MemoryTemperature: new(41), SlowdownTemperature: new(89),
				Power:    &gpu.Power{Usage: 62_000, Limit: 400_000, Default: 400_000, Min: 100_000, Max: 400_000},
				Throttle: []string{}, ECC: &gpu.ECCErrors{}, Rows: &gpu.RemappedRows{Banks: &gpu.RowBanks{Max: 640}},
				NVLinkErrors: &gpu.NVLinkErrors{}, PCIeReplays: new(uint64(0)), Recovery: tt.recovery,
			}
			if diff := cmp.Diff(want, h); diff != "" || err != nil {
				t.Errorf("health: %v (-want +got):\n%s", err, diff)
			}
			for what, err := range callEverything(ctx, n.Client, 0) {
				if err != nil && !gpu.IsAny(err, gpu.ErrNotSupported) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if s, err := n.Snapshot(ctx, n.gpus[0]); err != nil || len(s.Instances) != 0 {
				t.Errorf("after an instance was created and destroyed: %+v, %v", s.Instances, err)
			}
			if h, err := n.Health(ctx, n.gpus[0]); err != nil || h.Power.Limit != 350_000 {
				t.Errorf("the limit that was set: %+v, %v", h.Power, err)
			}
		})
	}
}
