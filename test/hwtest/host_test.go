package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSMI(t *testing.T) {
	const gpus = `0, GPU-aaaa, 00000000:07:00.0, NVIDIA H200, 143771, 4, Disabled, Default, 570.124.06
1, GPU-bbbb, 00000000:0F:00.0, NVIDIA A100-SXM4-40GB, 40960, 512, Enabled, Exclusive_Process, 570.124.06
2, GPU-cccc, 00000000:1A:00.0, NVIDIA RTX A6000, 49140, 0, [N/A], Default, 570.124.06
`
	got, err := parseSMI(gpus, "GPU-bbbb, 4711\nGPU-bbbb, 4712\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []observedGPU{
		{
			index:       0,
			uuid:        "GPU-aaaa",
			pci:         "0000:07:00.0",
			model:       "NVIDIA H200",
			totalMiB:    143771,
			usedMiB:     4,
			computeMode: "Default",
			driver:      "570.124.06",
		},
		{
			index:            1,
			uuid:             "GPU-bbbb",
			pci:              "0000:0f:00.0",
			model:            "NVIDIA A100-SXM4-40GB",
			totalMiB:         40960,
			usedMiB:          512,
			mig:              true,
			computeMode:      "Exclusive_Process",
			driver:           "570.124.06",
			computeProcesses: 2,
		},
		{
			index:       2,
			uuid:        "GPU-cccc",
			pci:         "0000:1a:00.0",
			model:       "NVIDIA RTX A6000",
			totalMiB:    49140,
			computeMode: "Default",
			driver:      "570.124.06",
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(observedGPU{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "No devices were found", "x, GPU-a, 0, n, 1, 1, Disabled, Default, 1", "0, GPU-a, 0, n, [N/A], 1, Disabled, Default, 1"} {
		if _, err := parseSMI(bad, ""); err == nil {
			t.Errorf("%q was parsed", bad)
		}
	}
}

func TestLastDone(t *testing.T) {
	for _, c := range []struct {
		name, out string
		want      float64
		fails     bool
	}{
		{"the last line counts", "ready on X, 1 MiB\ndone 4 allocated 1\ndone 12 allocated 1\n", 12, false},
		{"a line that is being written", "done 4 allocated 1\ndone 1", 4, false},
		{"nothing yet", "ready on X, 1 MiB\n", 0, true},
		{"no line end yet", "done 4", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := lastDone(c.out)
			if (err != nil) != c.fails || got != c.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// TestSkipsWithoutAGPU: without a GPU nothing is started, and the reason is printed.
func TestSkipsWithoutAGPU(t *testing.T) {
	t.Chdir("../..")
	t.Setenv("PATH", t.TempDir())
	var out, errs bytes.Buffer
	if code := run(t.Context(), nil, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "skipped: ") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
}
