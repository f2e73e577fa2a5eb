//go:build cgo

package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// sampleLibrary builds a library with the three functions and the types of the vendor's header.
func sampleLibrary(t *testing.T) library {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is missing: cannot build the library")
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatalf("cannot find nvml.h: %v", err)
	}
	path := filepath.Join(t.TempDir(), "samples.so")
	cmd := exec.Command("gcc", "-shared", "-fPIC", "-I"+filepath.Join(strings.TrimSpace(string(module)), "pkg/nvml"),
		"-o", path, "testdata/samples.c")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("cannot build the library: %v", err)
	}
	lib, err := openLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// countCalls returns how often the functions were called since the last count.
func countCalls(t *testing.T, lib library) int {
	t.Helper()
	rows, ret := listProcesses(lib.symbol("test_calls"), nil, rowSizeV2)
	if ret != nvml.SUCCESS {
		t.Fatalf("code %d", ret)
	}
	return len(rows)
}

// TestSampleLayouts reads rows that were written as the vendor's header lays them out, into buffers that are too small at
// first.
func TestSampleLayouts(t *testing.T) {
	lib := sampleLibrary(t)
	var device int
	raw := unsafe.Pointer(&device)
	newer, older, gpus := lib.symbol("nvmlDeviceGetProcessesUtilizationInfo"), lib.symbol(
		"nvmlDeviceGetProcessUtilization",
	), lib.symbol("nvmlDeviceGetSamples")
	processes := func(fn unsafe.Pointer, old bool) func(uint64) (int, nvml.Return) {
		return func(since uint64) (int, nvml.Return) {
			rows, ret := listSamples(fn, raw, old, since)
			for i, r := range rows {
				if want := (gpu.UtilSample{PID: i + 1, Time: 1<<40 | uint64(i), SM: i % 101, Mem: (i + 7) % 101}); r != want {
					t.Errorf("row %d is %+v, want %+v", i, r, want)
				}
			}
			return len(rows), ret
		}
	}
	whole := func(since uint64) (int, nvml.Return) {
		rows, ret := listSeries(gpus, raw, since)
		for i, r := range rows {
			if want := (gpu.SeriesSample{Percent: i % 101, Time: 1<<40 | uint64(i)}); r != want {
				t.Errorf("sample %d is %+v, want %+v", i, r, want)
			}
		}
		return len(rows), ret
	}
	for _, f := range []struct {
		name    string
		read    func(since uint64) (int, nvml.Return)
		initial int
	}{
		{"nvmlDeviceGetProcessesUtilizationInfo", processes(newer, false), initialSamples},
		{"nvmlDeviceGetProcessUtilization", processes(older, true), initialSamples},
		{"nvmlDeviceGetSamples", whole, initialSeries},
	} {
		for _, c := range []struct {
			name  string
			since uint64
			rows  int
			ret   nvml.Return
			again bool // the buffer of the first call is too small
		}{
			{"none", 0, 0, nvml.SUCCESS, false},
			{"some", 72, 72, nvml.SUCCESS, false},
			{"more than fit", 700, 700, nvml.SUCCESS, true},
			{"dry", 1000, 0, nvml.SUCCESS, false},
			{"refused", 2000, 0, nvml.ERROR_NOT_SUPPORTED, false},
			{"more than fit, without the size", 3000 + 700, 700, nvml.SUCCESS, true},
			{"another type of value", 5000 + 72, 72, nvml.SUCCESS, false},
		} {
			t.Run(f.name+" "+c.name, func(t *testing.T) {
				rows, ret := f.read(c.since)
				n := countCalls(t, lib)
				if rows != c.rows || ret != c.ret {
					t.Errorf("%d rows, code %d; want %d, code %d", rows, ret, c.rows, c.ret)
				}
				if n == 0 || (n > 1) != c.again || n > 6 {
					t.Errorf("%d calls", n)
				}
			})
		}
		t.Run(f.name+" growing", func(t *testing.T) {
			start := uint64(f.initial + 1)
			rows, ret := f.read(4000 + start)
			if n := countCalls(t, lib); ret != nvml.SUCCESS || rows != int(start)+50*(n-1) || n < 2 {
				t.Errorf("%d rows, code %d after %d calls", rows, ret, n)
			}
		})
	}
}
