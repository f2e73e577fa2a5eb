//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/test/enumeration"
)

// essential are the symbols that a library must have for the worker to start.
var essential = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", "nvmlDeviceGetIndex", "nvmlDeviceGetMemoryInfo",
}

// exported reads the symbols of a driver version from its version script.
func exported(t *testing.T, variant string) []string {
	t.Helper()
	text, err := os.ReadFile("../../gpusim/shim/" + variant + ".map")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range strings.Fields(string(text)) {
		if name, ok := strings.CutSuffix(f, ";"); ok && strings.HasPrefix(name, "nvml") {
			out = append(out, name)
		}
	}
	return out
}

// link builds a driver library that exports only these symbols.
func link(t *testing.T, dir string, objects, symbols []string) string {
	t.Helper()
	script := filepath.Join(dir, "some.map")
	text := "{ global: " + strings.Join(symbols, "; ") + "; local: *; };\n"
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(dir, "libnvidia-ml.so.1")
	args := append([]string{"-shared", "-Wl,-soname,libnvidia-ml.so.1", "-Wl,--version-script=" + script, "-o", lib}, objects...)
	if out, err := exec.Command("gcc", append(args, "-lpthread", "-ldl")...).CombinedOutput(); err != nil {
		t.Fatalf("cannot link: %v\n%s", err, out)
	}
	return lib
}

// callEverything runs all operations, and reads events for a while. The caller checks the errors.
func callEverything(ctx context.Context, c *worker.Client, watch time.Duration) map[string]error {
	errs := map[string]error{}
	info, err := c.Node(ctx)
	errs["node"] = err
	for _, g := range info.GPUs {
		_, errs["snapshot"] = c.Snapshot(ctx, g.UUID)
		_, errs["memory"] = c.Memory(ctx, g.UUID)
		_, errs["processes"] = c.Processes(ctx, g.UUID)
		_, _, errs["utilisation"] = c.Utilization(ctx, g.UUID, 0)
		_, errs["utilisation series"] = c.UtilizationSeries(ctx, g.UUID, 0)
		_, errs["NVLinks"] = c.NVLinks(ctx, g.UUID)
		_, errs["health"] = c.Health(ctx, g.UUID)
		errs["power limit"] = c.SetPowerLimit(ctx, g.UUID, 350_000)
		_, errs["profiles"] = c.Profiles(ctx, g.UUID)
		errs["compute mode"] = c.SetComputeMode(ctx, g.UUID, gpu.ComputeDefault)
		_, errs["MIG mode"] = c.SetMIGMode(ctx, g.UUID, true)
		at := gpu.Placement{Start: 0, Size: 1}
		in, err := c.CreateInstance(ctx, g.UUID, gpu.NewInstance{
			ProfileID: 19,
			Placement: gpu.Placement{Start: 2, Size: 1},
			Compute:   []gpu.NewCompute{{Slices: 1, Placement: &at}},
		})
		errs["create"] = err
		if err == nil {
			_, errs["complete"] = c.CompleteInstance(ctx, g.UUID, in.ID, nil)
			errs["destroy"] = c.DestroyInstance(ctx, g.UUID, in.ID)
		}
	}
	if watch > 0 {
		ctx, cancel := context.WithTimeout(ctx, watch)
		defer cancel()
		errs["events"] = c.Events(ctx, func(gpu.Event) {})
	}
	return errs
}

// lackingClients builds the driver library and the worker, and returns a function that starts a worker on a library with only
// these symbols.
func lackingClients(t *testing.T, n *simNode) func(t *testing.T, symbols []string) *worker.Client {
	t.Helper()
	dir := t.TempDir()
	// The test starts more than a hundred workers: they are built without the race detector, which slows each start.
	binary := filepath.Join(dir, "gpushare-nvml")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("cannot build the worker: %v\n%s", err, out)
	}
	header, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("../../gpusim/shim/*.c")
	if err != nil {
		t.Fatal(err)
	}
	var objects []string
	for _, s := range sources {
		o := filepath.Join(dir, strings.TrimSuffix(filepath.Base(s), ".c")+".o")
		objects = append(objects, o)
		if out, err := exec.Command(
			"gcc", "-w", "-fPIC", "-c", "-I"+filepath.Join(strings.TrimSpace(string(header)), "pkg/nvml"), "-o", o, s,
		).CombinedOutput(); err != nil {
			t.Fatalf("cannot compile: %v\n%s", err, out)
		}
	}
	return func(t *testing.T, symbols []string) *worker.Client {
		t.Helper()
		lib := link(t, t.TempDir(), objects, symbols)
		run, err := os.MkdirTemp("", "r")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(run) })
		c, err := worker.New(worker.Options{
			Command: []string{binary}, Env: []string{"GPUSIM_ROOT=" + n.root}, RunDir: run,
			Library: lib, HostRoot: n.root, Launcher: worker.Exec{},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// TestSimLackingSymbols removes the symbols from the library, one at a time, and all optional ones together. A call of a
// missing symbol would end the worker with exit code 127.
func TestSimLackingSymbols(t *testing.T) {
	n := serve(t, old, worker.Deadlines{})
	client := lackingClients(t, n)
	check := func(t *testing.T, c *worker.Client, watch time.Duration, allowed ...error) {
		t.Helper()
		for what, err := range callEverything(testContext(t), c, watch) {
			if err != nil && !slices.ContainsFunc(allowed, func(m error) bool { return errors.Is(err, m) }) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if st := c.Stats(); st.Crashes != 0 || st.Timeouts != 0 || st.Starts != 1 {
			t.Errorf("%d crashes, %d timeouts, %d starts; want one start", st.Crashes, st.Timeouts, st.Starts)
		}
	}

	minimal := client(t, essential)
	info, err := minimal.Node(testContext(t))
	if err != nil || len(info.GPUs) != 1 || len(info.Missing) < 40 {
		t.Fatalf("minimal library: %+v, %v", info, err)
	}
	check(t, minimal, time.Second, gpu.ErrMissing, gpu.ErrNotSupported)

	all := exported(t, "535")
	for _, name := range essential {
		t.Run("essential "+name, func(t *testing.T) {
			left := slices.DeleteFunc(slices.Clone(essential), func(s string) bool { return s == name })
			if _, err := client(t, left).Node(testContext(t)); !errors.Is(err, gpu.ErrMissing) || !strings.Contains(fmt.Sprint(err), name) {
				t.Errorf("without %s: %v; want ErrMissing and its name", name, err)
			}
		})
	}
	for i, name := range all { // including those that the worker does not call
		if !enumeration.Runs(i, 8) || slices.Contains(essential, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			left := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == name })
			watch := time.Duration(0)
			if strings.Contains(name, "Event") {
				watch = 500 * time.Millisecond
			}
			check(t, client(t, left), watch, gpu.ErrMissing, gpu.ErrNotSupported, context.DeadlineExceeded)
		})
	}
}
