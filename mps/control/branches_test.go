package control

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/test/enumeration"
)

func TestStartsOnEveryBranch(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			r := newFixtureOf(t, driver)
			set := mps.Settings{GPU: gpuA, Threads: 30, Memory: 1500 << 20}
			r.start(t, set)
			st := r.running(t)
			if single := driver < "580"; st.SingleUser != single {
				t.Errorf("one user at a time: %v, want %v", st.SingleUser, single)
			}
			p := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
			if st := r.running(t); !cmp.Equal(st.Clients, []int{p.cmd.Process.Pid}) {
				t.Errorf("clients %v", st.Clients)
			}
			if err := r.Stop(t.Context(), deviceA); err != nil {
				t.Fatal(err)
			}
			p.ends(t, 1, "CUDA error 810")
		})
	}
}

// Where the program says why it ends, the error has its words.
func TestWithoutAGPUOnEveryBranch(t *testing.T) {
	t.Parallel()
	said := map[string]string{
		"535.261.03": "",
		"550.163.01": "",
		"555.58.02":  "",
		"580.178.04": "found no usable GPU (it exited with 100)",
		"595.99.02":  "found no usable GPU (it exited with 100)",
		"615.71.09":  "Failed to initialize CUDA: 100",
	}
	for _, driver := range onEveryBranch(t) {
		want := said[driver]
		t.Run(driver, func(t *testing.T) {
			r := newFixtureOf(t, driver)
			if err := os.Remove(filepath.Join(r.node.Root, "run/gpusim/cuda.sock")); err != nil {
				t.Fatal(err)
			}
			err := r.Start(t.Context(), mps.Settings{GPU: gpuA})
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

// TestOnEveryBranch runs the tests of this package on nodes with the other branches of the driver.
func TestOnEveryBranch(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	switch {
	case os.Getenv(driverEnv) != "":
		t.Skip("this process runs the tests of one branch: the process that started it runs the others")
	case testing.Short():
		t.Skip("-short: it runs all tests of the package again for each branch")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	others := slices.DeleteFunc(slices.Clone(branches), func(driver string) bool { return driver == defaultDriver })
	for i, driver := range others {
		if i%enumeration.Stride(len(others)-1) != 0 {
			continue // The oldest and the newest differ most.
		}
		t.Run(driver, func(t *testing.T) {
			t.Parallel() // It waits for programs most of the time.
			cmd := exec.CommandContext(t.Context(), self, "-test.short", "-test.count=1")
			cmd.Env = append(os.Environ(), driverEnv+"="+driver)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
