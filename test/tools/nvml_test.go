//go:build tools

package tools

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/nvml"
	"github.com/gpushare/gpushare/gpu/worker"
)

// realNVML are NVIDIA's NVML libraries of Debian, by the branch of the driver.
var realNVML = sync.OnceValues(func() (string, error) { return unpack("nvml") })

// eachNVML runs a test for each of them. It fails where they cannot be downloaded.
func eachNVML(t *testing.T, f func(t *testing.T, branch, library string)) {
	dir, err := realNVML()
	if err != nil {
		t.Fatalf("cannot get NVIDIA's NVML library: %v", err)
	}
	for _, branch := range []string{"535", "550"} {
		t.Run(branch, func(t *testing.T) {
			version, err := os.ReadFile(filepath.Join(dir, branch, "version"))
			if err != nil || !strings.HasPrefix(string(version), branch+".") {
				t.Fatalf("version %q: %v", version, err)
			}
			f(t, branch, filepath.Join(dir, branch, "libnvidia-ml.so.1"))
		})
	}
}

// exportedBy returns the functions of a library.
func exportedBy(t *testing.T, library string) map[string]bool {
	t.Helper()
	f, err := elf.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC && strings.HasPrefix(s.Name, "nvml") {
			out[s.Name] = true
		}
	}
	if len(out) < 300 {
		t.Fatalf("%s exports %d functions", library, len(out))
	}
	return out
}

// ofTheVirtualNode returns the functions that the library of the virtual node has on a branch.
func ofTheVirtualNode(t *testing.T, branch string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../gpusim/shim/" + branch + ".map")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, word := range strings.Fields(string(text)) {
		if name, ok := strings.CutSuffix(word, ";"); ok && strings.HasPrefix(name, "nvml") {
			out[name] = true
		}
	}
	if len(out) < 100 {
		t.Fatalf("the map of branch %s has %d functions", branch, len(out))
	}
	return out
}

// TestRealNVMLHasTheFunctionsOfTheVirtualNode: the virtual node has no function that the driver of its branch does not have.
// Otherwise its tests would call what no host of that branch has.
func TestRealNVMLHasTheFunctionsOfTheVirtualNode(t *testing.T) {
	eachNVML(t, func(t *testing.T, branch, library string) {
		exported, virtual := exportedBy(t, library), ofTheVirtualNode(t, branch)
		var invented []string
		for name := range virtual {
			if !exported[name] {
				invented = append(invented, name)
			}
		}
		slices.Sort(invented)
		if len(invented) > 0 {
			t.Errorf(
				"the library of branch %s has %d functions, of the %d of the virtual node not: %q", branch, len(exported), len(virtual),
				invented,
			)
		}
	})
}

// TestRealNVMLLacksWhatTheVirtualNodeLacks: of the functions that the worker calls, the library of a branch lacks those that the
// virtual node of that branch lacks, with which everything is tested, and no others.
func TestRealNVMLLacksWhatTheVirtualNodeLacks(t *testing.T) {
	eachNVML(t, func(t *testing.T, branch, library string) {
		exported, virtual := exportedBy(t, library), ofTheVirtualNode(t, branch)
		want, err := nvml.Missing(func(name string) bool { return virtual[name] })
		if err != nil {
			t.Fatal(err)
		}
		got, err := nvml.Missing(func(name string) bool { return exported[name] })
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("what is called and missing: %v (-virtual +real):\n%s", err, d)
		}
	})
}

// TestRealNVMLWithoutTheDriver starts the shipped worker with the library on a host whose kernel has no driver: that is a named
// state, and the worker neither crashes nor hangs.
func TestRealNVMLWithoutTheDriver(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("this host has the driver")
	}
	eachNVML(t, func(t *testing.T, _, library string) {
		binary, err := filepath.Abs("../../bin/gpushare-nvml")
		if err != nil {
			t.Fatal(err)
		}
		run, err := os.MkdirTemp("", "nvml-") // A short path: a socket's has at most 107 bytes.
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(run) })
		c, err := worker.New(worker.Options{Command: []string{binary}, RunDir: run, Library: library, Launcher: worker.Exec{}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		for range 3 {
			if _, err := c.Node(shortContext(t)); !errors.Is(err, gpu.ErrNotLoaded) {
				t.Errorf("the node is read with %v, want %v", err, gpu.ErrNotLoaded)
			}
		}
		if st := c.Stats(); st.Crashes != 0 || st.Timeouts != 0 {
			t.Errorf("%d crashes, %d timeouts", st.Crashes, st.Timeouts)
		}
	})
}
