// Package nodefile reads the description of a virtual node, and the known boards, from YAML. Package gpusim implements
// them.
//
// A node file has these keys, all optional:
//
//	driver: "580"               the library variant: 470, 535, 550, 580 or 615
//	driver_version: 580.95.05   the reported driver version
//	state: ready                ready, absent (no kernel module) or mismatch
//	seed: lab                   the seed of the UUIDs and of the sampler
//	context_memory: 300MiB      memory of a CUDA context
//	server_memory: 30MiB        memory of an MPS server while it has clients
//	monitors_block_reset: true  a process with a handle of a GPU prevents its reset
//	no_reset: false             the driver cannot reset: a mode change returns "reset required"
//	hide_process_memory: false  process lists report memory as "not available"
//	compute_reports: placements what is reported of compute instances: placements (and UUIDs), uuids, or none of both
//	mps_clients: own            which lists of processes have MPS clients: own (the list of MPS), both (also that of compute
//	                            processes) or server (none; their memory is that of the server)
//	late_modules: [nvidia-uvm]  modules that a boot does not load: nvidia-uvm, nvidia-modeset, nvidia-drm
//	device_nodes: made          who makes the nodes of capabilities and modules: made (udev, or the vendor's library, at once) or
//	                            helper (nothing until nvidia-modprobe is called)
//	instance_use: present       how the driver answers for the counters of GPU instances: present (on Hopper and newer), unsupported,
//	                            denied, or keeps (an instance of which a sample exists is in use)
//	raw_samples: false          utilisation sample by sample instead of per process
//	sampler: {naming: period, period: 139ms, jitter: 0.1, clock: epoch, zero_when_idle: false, series: present}
//	                            how the driver samples utilisation, on every GPU. Drivers differ, or their documentation
//	                            can be read in several ways:
//	                            naming: which process a row names: period (one of those that ran in the period, by their
//	                            work), instant (one that runs when the sample is taken; none when nothing runs) or last
//	                            (the one that ran last in the period)
//	                            period: 10ms to 2s; default 10 s/72. jitter: the part of the period, 0 to 0.5, by which
//	                            its length varies. clock: times since the epoch (1970) or since boot
//	                            zero_when_idle: the GPU's own samples have a value of 0 while it is idle; otherwise none
//	                            series: present, missing or unsupported: how the driver answers DeviceGetSamples
//	switching: {slice: 2ms, whole_kernels: false}
//	                            processes run one after the other, each for this long if others have work; without it they
//	                            share a GPU equally at any time. whole_kernels: no kernel is interrupted
//	latency: {DeviceSetMigMode: 4s, "DeviceGet*RunningProcesses": 4ms}
//	memory_limits: {accounting: misc, dmem_files: host, unset: none, context: counts}
//	                            of driver 615. accounting: misc (inside the driver), dmem (the kernel's controller) or
//	                            "off"; the default is dmem if this kernel has the controller. dmem_files: host, or every
//	                            (every cgroup counts as one with them). unset: reading a cgroup without a limit returns
//	                            none, or fails. context: the memory of a context itself counts, or is free
//	nvlink: {bridges: [[0, 1], [2, 3]], switches: 6, no_fabric_manager: false}
//	                            the sets of GPUs, by index, that a bridge connects, and how many NVSwitches connect all
//	                            others. The links of GPUs without bridge and switch are down. Next to switches runs a
//	                            fabric manager, unless no_fabric_manager
//	gpus:
//	  - {model: A100-SXM4-40GB, count: 8}
//	  - {model: H100-SXM5-80GB, uuid: GPU-…, pci: "0000:41:00.0", minor: 3, numa: 1, display: false, mig: true,
//	     layout: [3g.40gb@0, 1g.10gb@4], compute_mode: exclusive-process}
package nodefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/board"
)

// File is a node file: the node and the variant of its library.
type File struct {
	Driver string // the library variant: "470", "535", "550", "580" or "615"
	Config gpusim.Config
}

// The driver versions of the variants, with their CUDA versions.
var variants = map[string]struct {
	version      string
	cuda         int
	memoryLimits bool
}{
	"470": {"470.256.02", 11040, false},
	"535": {"535.183.01", 12020, false},
	"550": {"550.163.01", 12040, false},
	"580": {"580.95.05", 13000, false},
	"615": {"615.10", 13040, true}, // the minor number is invented: no release was seen
}

// The default memory sizes. Both are uncertain, from the range of observed processes on H-class boards.
const (
	defaultContextMemory = 300 * gpusim.MiB
	defaultServerMemory  = 30 * gpusim.MiB
)

type document struct {
	Driver             string            `yaml:"driver"`
	DriverVersion      string            `yaml:"driver_version"`
	State              string            `yaml:"state"`
	Seed               string            `yaml:"seed"`
	ContextMemory      string            `yaml:"context_memory"`
	ServerMemory       string            `yaml:"server_memory"`
	Latency            map[string]string `yaml:"latency"`
	MonitorsBlockReset *bool             `yaml:"monitors_block_reset"`
	NoReset            bool              `yaml:"no_reset"`
	HideMemory         bool              `yaml:"hide_process_memory"`
	MPSClients         string            `yaml:"mps_clients"`
	InstanceUse        string            `yaml:"instance_use"`
	ComputeReports     string            `yaml:"compute_reports"`
	RawSamples         bool              `yaml:"raw_samples"`
	LateModules        []string          `yaml:"late_modules"`
	DeviceNodes        string            `yaml:"device_nodes"`
	Sampler            sampler           `yaml:"sampler"`
	Switching          switching         `yaml:"switching"`
	MemoryLimits       *memoryLimits     `yaml:"memory_limits"`
	NVLink             nvlink            `yaml:"nvlink"`
	GPUs               []entry           `yaml:"gpus"`
}

type memoryLimits struct {
	Accounting string `yaml:"accounting"`
	DmemFiles  string `yaml:"dmem_files"`
	Unset      string `yaml:"unset"`
	Context    string `yaml:"context"`
}

// apply sets the limits of a driver that has them.
func (m memoryLimits) apply(to *gpusim.Config) error {
	for _, k := range []struct{ key, value, first, second string }{
		{"dmem_files", m.DmemFiles, "host", "every"}, {"unset", m.Unset, "none", "fails"}, {"context", m.Context, "counts", "free"},
	} {
		if k.value != "" && k.value != k.first && k.value != k.second {
			return fmt.Errorf("memory_limits.%s must be %s or %s, not %q", k.key, k.first, k.second, k.value)
		}
	}
	host := &gpusim.HostCgroups{EveryDmem: m.DmemFiles == "every"}
	to.Cgroups = host
	to.MemoryLimits = gpusim.MemoryLimitConfig{UnsetFails: m.Unset == "fails", ContextFree: m.Context == "free"}
	switch m.Accounting {
	case "":
		to.MemoryLimits.Accounting = gpusim.MemoryAccountingMisc
		if host.HasDmem() || host.EveryDmem {
			to.MemoryLimits.Accounting = gpusim.MemoryAccountingDmem
		}
	case string(gpusim.MemoryAccountingMisc), string(gpusim.MemoryAccountingDmem):
		to.MemoryLimits.Accounting = gpusim.MemoryAccounting(m.Accounting)
	case "off":
	default:
		return fmt.Errorf("memory_limits.accounting must be misc, dmem or off, not %q", m.Accounting)
	}
	return nil
}

type nvlink struct {
	Bridges         [][]int `yaml:"bridges"`
	Switches        int     `yaml:"switches"`
	NoFabricManager bool    `yaml:"no_fabric_manager"`
}

type entry struct {
	Model       string   `yaml:"model"`
	Count       int      `yaml:"count"`
	UUID        string   `yaml:"uuid"`
	PCI         string   `yaml:"pci"`
	Minor       *int     `yaml:"minor"`
	NUMA        *int     `yaml:"numa"`
	Display     bool     `yaml:"display"`
	MIG         bool     `yaml:"mig"`
	Layout      []string `yaml:"layout"`
	ComputeMode string   `yaml:"compute_mode"`
}

// addresses are the PCI buses of the first eight GPUs, as on an eight-GPU board.
var addresses = [...]string{"07", "0f", "47", "4e", "87", "90", "b7", "bd"}

// Decode reads a node file.
func Decode(b []byte) (File, error) {
	var doc document
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return File{}, fmt.Errorf("cannot read node file: %w", err)
	}
	f, err := doc.file()
	if err != nil {
		return File{}, fmt.Errorf("cannot use node file: %w", err)
	}
	return f, nil
}

func (doc *document) file() (File, error) {
	if doc.Driver == "" {
		doc.Driver = "580"
	}
	v, ok := variants[doc.Driver]
	if !ok {
		return File{}, fmt.Errorf("driver must be 470, 535, 550, 580 or 615, not %q", doc.Driver)
	}
	f := File{Driver: doc.Driver, Config: gpusim.Config{
		DriverVersion: doc.DriverVersion, CUDAVersion: v.cuda, State: gpusim.DriverState(doc.State), Seed: doc.Seed,
		ContextMemory: defaultContextMemory, ServerMemory: defaultServerMemory, Latency: map[string]time.Duration{},
		MonitorsBlockReset: doc.MonitorsBlockReset == nil || *doc.MonitorsBlockReset, ResetUnavailable: doc.NoReset,
		HideProcessMemory: doc.HideMemory, RawSamples: doc.RawSamples,
		Bridges: doc.NVLink.Bridges, Switches: doc.NVLink.Switches, NoFabricManager: doc.NVLink.NoFabricManager,
	}}
	cfg := &f.Config
	if cfg.DriverVersion == "" {
		cfg.DriverVersion = v.version
	}
	if err := doc.reports(cfg); err != nil {
		return File{}, err
	}
	for _, m := range doc.LateModules {
		if !slices.Contains(gpusim.Modules(), m) {
			return File{}, fmt.Errorf("late_modules must be of %s, not %q", strings.Join(gpusim.Modules(), ", "), m)
		}
	}
	cfg.LateModules, cfg.NodesByHelper = doc.LateModules, doc.DeviceNodes == "helper"
	if doc.DeviceNodes != "" && doc.DeviceNodes != "made" && doc.DeviceNodes != "helper" {
		return File{}, fmt.Errorf("device_nodes must be made or helper, not %q", doc.DeviceNodes)
	}
	switch cfg.State {
	case "", gpusim.DriverReady, gpusim.DriverAbsent, gpusim.DriverMismatch:
	default:
		return File{}, fmt.Errorf("state must be ready, absent or mismatch, not %q", doc.State)
	}
	switch {
	case v.memoryLimits && doc.MemoryLimits == nil:
		doc.MemoryLimits = &memoryLimits{}
	case !v.memoryLimits && doc.MemoryLimits != nil:
		return File{}, fmt.Errorf("memory_limits needs driver 615, not %s", doc.Driver)
	}
	if doc.MemoryLimits != nil {
		if err := doc.MemoryLimits.apply(cfg); err != nil {
			return File{}, err
		}
	}
	for text, to := range map[string]*uint64{doc.ContextMemory: &cfg.ContextMemory, doc.ServerMemory: &cfg.ServerMemory} {
		if text == "" {
			continue
		}
		n, err := parseSize(text)
		if err != nil {
			return File{}, err
		}
		*to = n
	}
	for call, text := range doc.Latency {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return File{}, fmt.Errorf("latency of %s: invalid duration %q", call, text)
		}
		cfg.Latency[call] = d
	}
	var err error
	if cfg.Sampling, cfg.Series, err = doc.Sampler.sampling(doc.Seed); err != nil {
		return File{}, fmt.Errorf("sampler: %w", err)
	}
	if cfg.Switching, err = doc.Switching.switching(); err != nil {
		return File{}, fmt.Errorf("switching: %w", err)
	}
	for i, e := range doc.GPUs {
		gpus, err := e.gpus(len(cfg.GPUs))
		if err != nil {
			return File{}, fmt.Errorf("gpus[%d]: %w", i, err)
		}
		cfg.GPUs = append(cfg.GPUs, gpus...)
	}
	return f, nil
}

// reports sets what the driver reports of compute instances and of clients of MPS.
func (doc *document) reports(cfg *gpusim.Config) error {
	switch doc.ComputeReports {
	case "", "placements":
	case string(gpusim.ComputeUUIDs), string(gpusim.ComputeNothing):
		cfg.ComputeReports = gpusim.ComputeReports(doc.ComputeReports)
	default:
		return fmt.Errorf("compute_reports must be placements, uuids or none, not %q", doc.ComputeReports)
	}
	switch doc.MPSClients {
	case "", "own":
	case string(gpusim.MPSListBoth), string(gpusim.MPSListServer):
		cfg.MPSLists = gpusim.MPSLists(doc.MPSClients)
	default:
		return fmt.Errorf("mps_clients must be own, both or server, not %q", doc.MPSClients)
	}
	switch use := gpusim.UseSupport(doc.InstanceUse); use {
	case "", "present":
	case gpusim.UseUnsupported, gpusim.UseDenied, gpusim.UseKeeps:
		cfg.Use = use
	default:
		return fmt.Errorf("instance_use must be present, unsupported, denied or keeps, not %q", doc.InstanceUse)
	}
	return nil
}

// gpus returns the GPUs of one entry. The first one has this index.
func (e entry) gpus(first int) ([]gpusim.GPUConfig, error) {
	model, err := Model(e.Model)
	if err != nil {
		return nil, err
	}
	if e.Count == 0 {
		e.Count = 1
	}
	if e.Count < 0 || e.Count > 1 && (e.UUID != "" || e.PCI != "" || e.Minor != nil) {
		return nil, fmt.Errorf("count %d cannot be combined with uuid, pci or minor", e.Count)
	}
	mode := gpu.ComputeMode(e.ComputeMode)
	switch mode {
	case "", gpu.ComputeDefault, gpu.ComputeExclusiveProcess, gpu.ComputeProhibited:
	default:
		return nil, fmt.Errorf("compute_mode must be default, exclusive-process or prohibited, not %q", e.ComputeMode)
	}
	var out []gpusim.GPUConfig
	for i := first; i < first+e.Count; i++ {
		g := gpusim.GPUConfig{
			Model: model, UUID: gpu.UUID(e.UUID), PCI: e.PCI, Minor: e.Minor, Display: e.Display,
			MIG: e.MIG || len(e.Layout) > 0, ComputeMode: mode, NUMANode: i / 4,
		}
		if e.NUMA != nil {
			g.NUMANode = *e.NUMA
		}
		if g.PCI == "" && i < len(addresses) {
			g.PCI = "0000:" + addresses[i] + ":00.0"
		} else if g.PCI == "" {
			g.PCI = fmt.Sprintf("0001:%02x:00.0", i)
		}
		if g.Layout, err = layout(model, e.Layout); err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, nil
}

// layout parses "3g.20gb@0": a profile's name and its start.
func layout(m *gpusim.Model, list []string) ([]gpu.NewInstance, error) {
	var out []gpu.NewInstance
	for _, text := range list {
		name, start, found := strings.Cut(text, "@")
		at, err := strconv.ParseUint(start, 10, 32)
		if !found || err != nil {
			return nil, fmt.Errorf("layout %q must have the form profile@start", text)
		}
		known := false
		for _, p := range m.Profiles {
			if p.Name == name {
				known = true
				out = append(out, gpu.NewInstance{ProfileID: p.ID, Placement: gpu.Placement{Start: uint32(at), Size: p.Size}})
			}
		}
		if !known {
			return nil, fmt.Errorf("layout %q: %s has no such profile", text, m.Name)
		}
	}
	return out, nil
}

// parseSize parses a size in whole KiB, MiB or GiB, or in bytes.
func parseSize(text string) (uint64, error) {
	number, shift := text, 0
	for suffix, s := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			number, shift = rest, s
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n > 1<<(63-shift) {
		return 0, fmt.Errorf("invalid size %q, want a size such as 300MiB", text)
	}
	return n << shift, nil
}

// Models lists the known boards by file name.
func Models() ([]string, error) {
	all, err := board.All()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, b := range all {
		out = append(out, b.File)
	}
	return out, nil
}

// Model reads one board by file name, "A100-SXM4-40GB", or by its short name, "a100-40".
func Model(name string) (*gpusim.Model, error) {
	b, err := board.Find(name)
	if unknown, ok := errors.AsType[*board.Unknown](err); ok {
		known, _ := Models()
		return nil, fmt.Errorf("cannot find model %q: known are %s", unknown.Name, strings.Join(known, ", "))
	}
	if err != nil {
		return nil, err
	}
	m := &gpusim.Model{
		Name:             b.Name,
		Architecture:     b.Architecture,
		PCIDevice:        b.PCIDevice,
		PCISubsystem:     b.PCISubsystem,
		TotalMiB:         b.Memory.Total,
		ReservedMiB:      b.Memory.Reserved,
		SMs:              b.SMs,
		NVLinks:          b.NVLinks,
		Resetless:        b.Resetless,
		ModeSurvivesBoot: b.ModeSurvivesBoot,
		Grid:             b.Grid,
	}
	m.Sensors = gpusim.BoardSensors{Slowdown: b.Sensors.Slowdown, Memory: b.Sensors.Memory, Banks: b.Sensors.Banks}
	if p := b.Sensors.Power; p != nil {
		m.Sensors.Power = &gpusim.PowerRange{Default: p.Default, Min: p.Min, Max: p.Max}
	}
	for _, p := range b.Profiles {
		m.Profiles = append(m.Profiles, gpusim.Profile{
			Enum: p.Enum, ID: p.ID, Name: p.Name, Slices: p.Slices, Size: p.Size, Starts: p.Starts, Prefer: p.Prefer, Max: p.Max,
			MemoryMiB: p.MemoryMiB, SMs: p.SMs, Copy: p.Copy, Decoders: p.Decoders, JPEG: p.JPEG, OFA: p.OFA, Attributes: p.Attributes,
		})
	}
	return m, m.Validate()
}
