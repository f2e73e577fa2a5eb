package nodefile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/nodefile"
)

func TestEveryNodeFileMakesANode(t *testing.T) {
	files, err := filepath.Glob("../../testdata/nodes/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := nodefile.Decode(b)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		n, err := gpusim.New(f.Config, engine.SystemClock{})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		n.Close()
	}
}

func TestDecode(t *testing.T) {
	f, err := nodefile.Decode([]byte(`
driver: "535"
seed: lab
context_memory: 1GiB
latency: {DeviceSetMigMode: 4s}
monitors_block_reset: false
switching: {slice: 2ms, whole_kernels: true}
sampler: {naming: instant, period: 168ms, jitter: 0.1, clock: boot, zero_when_idle: true, series: unsupported}
nvlink: {bridges: [[0, 1], [2, 3]], switches: 6, no_fabric_manager: true}
gpus:
  - {model: A100-SXM4-40GB, count: 9}
  - {model: H100-SXM5-80GB, pci: "0002:01:00.0", minor: 20, numa: -1, layout: [3g.40gb@0, 1g.10gb@6], compute_mode: exclusive-process}
`))
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	if f.Driver != "535" || c.DriverVersion != "535.183.01" || c.CUDAVersion != 12020 || c.MonitorsBlockReset ||
		c.ContextMemory != 1<<30 || c.Latency["DeviceSetMigMode"] != 4*time.Second || len(c.GPUs) != 10 ||
		c.Switches != 6 || !c.NoFabricManager || len(c.Bridges) != 2 || c.Bridges[1][1] != 3 || c.GPUs[0].Model.NVLinks != 12 {
		t.Errorf("%+v", c)
	}
	if seed := c.Sampling.Seed; seed == 0 || c.Series != gpusim.SeriesUnsupported || c.Sampling != (engine.Sampling{
		Naming: engine.NameInstant, Period: 168 * time.Millisecond, Jitter: 0.1, Clock: engine.SinceBoot, ZeroWhenIdle: true, Seed: seed,
	}) {
		t.Errorf("sampler %+v, series %q", c.Sampling, c.Series)
	}
	if c.Switching != (engine.Switching{Slice: 2 * time.Millisecond, Whole: true}) {
		t.Errorf("switching %+v", c.Switching)
	}
	seen := map[string]bool{}
	for _, g := range c.GPUs {
		if seen[g.PCI] {
			t.Errorf("two GPUs at %s", g.PCI)
		}
		seen[g.PCI] = true
	}
	last := c.GPUs[9]
	if last.PCI != "0002:01:00.0" || *last.Minor != 20 || last.NUMANode != -1 || !last.MIG || len(last.Layout) != 2 ||
		last.Layout[1].Placement.Start != 6 {
		t.Errorf("%+v", last)
	}
}

func TestInvalidNodeFiles(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"unknown key":       {"colour: red", "colour"},
		"unknown model":     {"gpus: [{model: A101}]", "A100-SXM4-40GB"},
		"unknown driver":    {"driver: '999'", "999"},
		"unknown state":     {"state: asleep", "asleep"},
		"bad size":          {"context_memory: 3 apples", "3 apples"},
		"bad duration":      {"latency: {any: soon}", "soon"},
		"unknown reports":   {"compute_reports: some", `compute_reports must be placements, uuids or none, not "some"`},
		"unknown use":       {"instance_use: some", `instance_use must be present, unsupported, denied or keeps, not "some"`},
		"unknown naming":    {"sampler: {naming: anybody}", `sampler: naming must be period, instant or last, not "anybody"`},
		"no period":         {"sampler: {period: 168}", `sampler: period must be a duration such as 168ms, not "168"`},
		"short period":      {"sampler: {period: 9ms}", "sampler: period must be 10ms to 2s, not 9ms"},
		"much jitter":       {"sampler: {jitter: 0.6}", "sampler: jitter must be 0 to 0.5 of the period, not 0.6"},
		"odd jitter":        {"sampler: {jitter: .nan}", "sampler: jitter must be 0 to 0.5"},
		"unknown clock":     {"sampler: {clock: lunar}", `sampler: clock must be epoch or boot, not "lunar"`},
		"unknown series":    {"sampler: {series: none}", `sampler: series must be present, missing or unsupported, not "none"`},
		"no duration":       {"switching: {slice: 2}", `switching: slice must be a duration such as 2ms, not "2"`},
		"long slice":        {"switching: {slice: 2s}", "switching: slice must be 0 to 1s, not 2s"},
		"no slice":          {"switching: {whole_kernels: true}", "switching: whole kernels need a slice"},
		"unknown sampler":   {"sampler: {name: x}", "line 1: field name not found"},
		"count with a uuid": {"gpus: [{model: A30-24GB, count: 2, uuid: GPU-1}]", "count"},
		"no start":          {"gpus: [{model: A30-24GB, layout: [1g.6gb]}]", "1g.6gb"},
		"no such profile":   {"gpus: [{model: A30-24GB, layout: [9g@0]}]", "9g"},
		"bad mode":          {"gpus: [{model: A30-24GB, compute_mode: shared}]", "shared"},
	} {
		if _, err := nodefile.Decode([]byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", name, err, c.want)
		}
	}
}

func TestMemoryLimits(t *testing.T) {
	const gpus = "\ngpus: [{model: A30-24GB}]"
	for _, c := range []struct {
		name, file, says string
		want             gpusim.MemoryLimitConfig
	}{
		{"misc", "driver: \"615\"\nmemory_limits: {accounting: misc, unset: fails}", "", gpusim.MemoryLimitConfig{Accounting: gpusim.MemoryAccountingMisc, UnsetFails: true}},
		{"dmem on any kernel", "driver: \"615\"\nmemory_limits: {dmem_files: every, context: free}", "", gpusim.MemoryLimitConfig{Accounting: gpusim.MemoryAccountingDmem, ContextFree: true}},
		{"off", "driver: \"615\"\nmemory_limits: {accounting: \"off\"}", "", gpusim.MemoryLimitConfig{}},
		{"older driver", "driver: \"580\"", "", gpusim.MemoryLimitConfig{}},
		{"older driver with limits", "driver: \"580\"\nmemory_limits: {}", "needs driver 615", gpusim.MemoryLimitConfig{}},
		{"no such accounting", "driver: \"615\"\nmemory_limits: {accounting: v1}", "must be misc, dmem or off", gpusim.MemoryLimitConfig{}},
		{"no such answer", "driver: \"615\"\nmemory_limits: {unset: 0}", "must be none or fails", gpusim.MemoryLimitConfig{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := nodefile.Decode([]byte(c.file + gpus))
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want %q", err, c.says)
				}
				return
			}
			if err != nil || f.Config.MemoryLimits != c.want {
				t.Errorf("%+v, %v; want %+v", f.Config.MemoryLimits, err, c.want)
			}
		})
	}
}
