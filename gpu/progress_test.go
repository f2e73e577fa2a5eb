package gpu_test

import (
	"context"
	"errors"
	"testing"

	"github.com/gpushare/gpushare/gpu"
)

func TestReportProgress(t *testing.T) {
	gpu.ReportProgress(context.Background(), "GPU-1") // no callback
	var got []gpu.UUID
	ctx := gpu.WithProgress(context.Background(), func(id gpu.UUID) { got = append(got, id) })
	gpu.ReportProgress(ctx, "GPU-1")
	gpu.ReportProgress(ctx, "GPU-2")
	if len(got) != 2 || got[0] != "GPU-1" || got[1] != "GPU-2" {
		t.Errorf("reported %v; want both in order", got)
	}
}

func TestErrorText(t *testing.T) {
	tests := []struct {
		name string
		err  gpu.Error
		want string
	}{
		{
			"of a GPU",
			gpu.Error{Op: "create instance", GPU: "GPU-1", Code: 23, Err: gpu.ErrInsufficientResources},
			"cannot create instance on GPU-1: insufficient resources (NVML code 23)",
		},
		{
			"of the node",
			gpu.Error{Op: "open the driver", Code: 9, Err: gpu.ErrNotLoaded},
			"cannot open the driver: the NVIDIA driver is not loaded (NVML code 9)",
		},
		{
			"without a code",
			gpu.Error{Op: "read the memory", GPU: "GPU-1", Err: gpu.ErrTimeout},
			"cannot read the memory on GPU-1: the driver did not answer in time",
		},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%s: %q; want %q", tt.name, got, tt.want)
		}
		if !errors.Is(&tt.err, tt.err.Err) {
			t.Errorf("%s does not unwrap to its sentinel", tt.name)
		}
	}
}
