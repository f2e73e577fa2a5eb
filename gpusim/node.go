package gpusim

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/engine"
)

// Clock is the time source of the node.
type Clock = engine.Clock

// DriverState is the state of the kernel module.
type DriverState string

// The states of the driver.
const (
	DriverReady    DriverState = "ready"
	DriverAbsent   DriverState = "absent"   // no kernel module: the library cannot start
	DriverMismatch DriverState = "mismatch" // kernel module and library are of different versions
)

// Config describes a virtual node. The caller of New must not change it afterwards.
type Config struct {
	DriverVersion string // "580.95.05"
	CUDAVersion   int    // 1000·major + 10·minor
	State         DriverState
	Seed          string // UUIDs are derived from it; nodes with the same seed have the same UUIDs
	GPUs          []GPUConfig
	// ContextMemory is the memory of every CUDA context in bytes.
	ContextMemory uint64
	// ServerMemory is the memory of an MPS server on a GPU while it has clients, in bytes.
	ServerMemory uint64
	// Latency is the duration of calls by name: the vendor's names without "nvml" and version ("DeviceSetMigMode"), or
	// path.Match patterns. The longest matching pattern applies.
	Latency map[string]time.Duration
	// MonitorsBlockReset: a process that only has a handle of a GPU prevents its reset, as on real nodes.
	MonitorsBlockReset bool
	// ResetUnavailable: the driver cannot reset GPUs (a virtual machine with a passed-through GPU).
	ResetUnavailable bool
	// MPSLists is which lists of processes have the clients of MPS servers.
	MPSLists MPSLists
	// HideProcessMemory: process lists report memory as "not available".
	HideProcessMemory bool
	// Sampling says how the driver samples utilisation. Its seed is mixed with the index of the GPU.
	Sampling engine.Sampling
	// Switching is how processes share a GPU.
	Switching engine.Switching
	// Series is whether the driver has the GPU's own utilisation samples.
	Series SeriesSupport
	// Use is how the driver answers the calls for the counters of GPU instances.
	Use UseSupport
	// ComputeReports is what the driver reports of compute instances.
	ComputeReports ComputeReports
	// RawSamples: utilisation is reported sample by sample, not added up per process.
	RawSamples bool
	// LateModules are those that neither a boot nor a load of the driver loads: another program does it later.
	LateModules []string
	// NodesByHelper: the nodes of capabilities and of modules are not made until nvidia-modprobe is called.
	NodesByHelper bool
	// Bridges are the sets of GPUs, by index, that a bridge connects.
	Bridges [][]int
	// Switches is the number of NVSwitches that connect all GPUs without a bridge.
	Switches int
	// NoFabricManager: the program that NVSwitches need does not run.
	NoFabricManager bool
	// MemoryLimits is the behaviour of the memory limits of R615, and Cgroups what they apply to: nil for an older driver.
	MemoryLimits MemoryLimitConfig
	Cgroups      Cgroups
}

// MPSLists is which lists of processes have the clients of MPS servers. It is not known which of them a driver has: NVIDIA's
// documentation shows clients in two lists ("M+C" in nvidia-smi) and in one, and monitoring that finds all work at the server.
type MPSLists string

// The readings.
const (
	MPSListOnly   MPSLists = ""       // clients are in the list of MPS processes, and the server is in that of compute processes
	MPSListBoth   MPSLists = "both"   // clients are in both lists
	MPSListServer MPSLists = "server" // no list has clients: their memory is that of the server
)

// GPUConfig is one GPU of a virtual node.
type GPUConfig struct {
	Model       *Model
	UUID        gpu.UUID // empty: derived from the seed
	PCI         string   // "0000:07:00.0"
	Minor       *int     // nil: its index
	NUMANode    int
	Display     bool
	MIG         bool // MIG mode is on at the first boot
	Layout      []gpu.NewInstance
	ComputeMode gpu.ComputeMode
}

// Hooks are called after a change of the node, without a lock held. They run on the goroutine of the change before its
// call returns, as the kernel updates its files before the call returns.
type Hooks struct {
	Changed func()                       // a mode, an instance, a reboot
	Kernel  func(level int, text string) // a kernel log line
	Booted  func()                       // after a reboot
}

// Node is the hardware and the kernel part of the driver. It outlives its clients.
type Node struct {
	cfg   Config
	clock Clock
	boots time.Time // of the first boot
	// readers are the calls that only read a GPU; the map does not change.
	readers map[string]func(*call, target) Ret

	// mu guards everything below, and the data of devices and clients. Effects that may block run without it.
	mu      sync.Mutex
	hooks   Hooks
	devices []*device
	// next are the boards that the next load of the driver finds, and swapped those that have changed places since; nil: no board
	// was moved.
	next      []*device
	swapped   [][2]*device
	plugged   int    // boards that were plugged since the node was made
	installed string // the version of the library; empty: that of the module
	// profileNames are names that the loaded driver has for profiles instead of those of the board, and nextNames those of the
	// installed one.
	profileNames, nextNames map[string]string
	load                    uint32 // number of driver loads: the generation of GPU handles
	bootID                  string
	bootN                   int
	serial                  uint32          // the generation of instance handles
	modules                 map[string]bool // of Modules: those that are loaded
	changes                 uint64          // counts changes of modes and instances, so that a call can detect its own
	clients                 map[*Client]struct{}
	events                  map[uint32]*eventSet
	eventN                  uint32
	useBuffers              map[uint64]*useBuffer // of the counters of instances
	useN                    uint64
	faults                  []*Fault
	faultN                  int
	calls                   map[string]uint64
	failures                map[string]uint64
	cleared                 chan struct{}   // closed and replaced when faults are cleared
	open                    context.Context // ends with Close
	close                   context.CancelFunc
}

// New returns a node that has just booted.
func New(cfg Config, clock Clock) (*Node, error) {
	if cfg.State == "" {
		cfg.State = DriverReady
	}
	n := &Node{
		cfg: cfg, clock: clock, boots: clock.Now(), readers: readers(),
		clients: map[*Client]struct{}{}, events: map[uint32]*eventSet{}, useBuffers: map[uint64]*useBuffer{},
		calls: map[string]uint64{}, failures: map[string]uint64{}, cleared: make(chan struct{}),
	}
	for pattern := range cfg.Latency {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("cannot use latency of %q: %w", pattern, err)
		}
	}
	if err := cfg.Sampling.Validate(); err != nil {
		return nil, fmt.Errorf("cannot use the sampler: %w", err)
	}
	if err := cfg.Switching.Validate(); err != nil {
		return nil, fmt.Errorf("cannot use the switching: %w", err)
	}
	switch cfg.Series {
	case SeriesPresent, SeriesMissing, SeriesUnsupported:
	default:
		return nil, fmt.Errorf("cannot use the sampler: series must be %s or %s, not %q", SeriesMissing, SeriesUnsupported, cfg.Series)
	}
	for i, g := range cfg.GPUs {
		if g.Model == nil {
			return nil, fmt.Errorf("cannot create GPU %d: it has no model", i)
		}
		if err := g.Model.Validate(); err != nil {
			return nil, fmt.Errorf("cannot create GPU %d: %w", i, err)
		}
		if g.MIG && g.Model.Grid == 0 {
			return nil, fmt.Errorf("cannot create GPU %d: %s has no MIG", i, g.Model.Name)
		}
		n.devices = append(n.devices, newDevice(n, i, g))
	}
	if len(n.devices) > maxGPUs {
		return nil, fmt.Errorf("cannot create node: it has %d GPUs, and the driver has capability minors for %d", len(n.devices), maxGPUs)
	}
	if err := errors.Join(n.checkLinks(), n.checkMemoryLimits()); err != nil {
		return nil, fmt.Errorf("cannot create node: %w", err)
	}
	n.open, n.close = context.WithCancel(context.Background())
	n.bootLocked()
	for i, g := range cfg.GPUs {
		for _, want := range g.Layout {
			if _, ret := n.devices[i].createWholeLocked(want); ret != Success {
				return nil, fmt.Errorf(
					"cannot create an instance of profile %d at %d on GPU %d: NVML code %d", want.ProfileID, want.Placement.Start, i,
					ret,
				)
			}
		}
	}
	return n, nil
}

// SetHooks sets the functions that are called after changes.
func (n *Node) SetHooks(h Hooks) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hooks = h
}

// Close stops the node's timers. The node must not be used afterwards.
func (n *Node) Close() {
	n.close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropLocked()
	for _, g := range n.devices {
		for _, gi := range g.instances {
			gi.engine.Close()
		}
		g.engine.Close()
	}
}

func (n *Node) bootLocked() {
	n.bootN++
	n.bootID = uuid5(fmt.Sprintf("gpushare virtual boot %s %d %d", n.cfg.Seed, n.bootN, n.boots.UnixNano()))
	n.loadLocked()
}

// loadLocked loads the driver for all GPUs.
func (n *Node) loadLocked() {
	n.load++
	n.loadModulesLocked()
	n.probeLocked()
	if n.installed != "" {
		n.cfg.DriverVersion, n.installed = n.installed, ""
		n.profileNames, n.nextNames = n.nextNames, nil
	}
	if n.load > 1 { // At first it is as configured.
		n.cfg.State = DriverReady
	}
	for _, g := range n.devices {
		g.loadLocked()
	}
}

// Reboot ends every use of the GPUs and boots again. Handles of clients become invalid, and the clients are
// uninitialised.
func (n *Node) Reboot() {
	n.mu.Lock()
	n.dropLocked()
	for _, g := range n.devices {
		g.lost, g.recovery = false, 0
		g.resets = 0
	}
	n.bootLocked()
	h := n.hooks
	n.mu.Unlock()
	if h.Booted != nil {
		h.Booted()
	}
	n.changed()
}

// ReloadDriver unloads and loads the kernel module. It fails with the pids while processes use the driver, unless forced
// (which is not possible on a real node).
func (n *Node) ReloadDriver(force bool) error {
	n.mu.Lock()
	if pids := n.inUseByLocked(nil, nil); len(pids) > 0 && !force {
		n.mu.Unlock()
		return fmt.Errorf("cannot unload driver: module nvidia is in use by pids %s", joinPIDs(pids))
	}
	n.dropLocked()
	n.loadLocked()
	version := n.cfg.DriverVersion
	n.mu.Unlock()
	n.kernel(6, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  "+version)
	n.changed()
	return nil
}

// dropLocked ends every context and uninitialises every client.
func (n *Node) dropLocked() {
	for _, g := range n.devices {
		for c := range g.contexts {
			c.endLocked()
		}
	}
	for c := range n.clients {
		c.inits = 0
		c.opened = map[int]bool{}
	}
	for _, s := range n.events {
		s.closeLocked()
	}
	n.events = map[uint32]*eventSet{}
}

// ResetGPU resets a GPU as the vendor's tool does: it fails while a process other than the caller uses the GPU.
func (n *Node) ResetGPU(id string, caller int) error {
	n.mu.Lock()
	g := n.findLocked(id)
	if g == nil {
		n.mu.Unlock()
		return fmt.Errorf("cannot reset GPU %s: not found", id)
	}
	if pids := n.inUseByLocked(g, &caller); len(pids) > 0 {
		n.mu.Unlock()
		return fmt.Errorf("cannot reset GPU %s: in use by pids %s", g.uuid, joinPIDs(pids))
	}
	if g.lost && g.recovery == recoveryReboot {
		n.mu.Unlock()
		return fmt.Errorf("cannot reset GPU %s: it is lost and needs a reboot", g.uuid)
	}
	g.resetLocked()
	n.mu.Unlock()
	n.changed()
	return nil
}

// inUseByLocked returns the pids that use a GPU (nil: the driver), except one.
func (n *Node) inUseByLocked(g *device, but *int) []int {
	set := map[int]bool{}
	for _, d := range n.devices {
		for c := range d.contexts {
			if g == nil || d == g {
				set[c.pid] = true
			}
		}
	}
	for c := range n.clients {
		if c.inits > 0 && (g == nil || n.cfg.MonitorsBlockReset && c.opened[g.index]) {
			set[c.pid] = true
		}
	}
	if but != nil {
		delete(set, *but)
	}
	out := make([]int, 0, len(set))
	for pid := range set {
		out = append(out, pid)
	}
	sort.Ints(out)
	return out
}

func joinPIDs(pids []int) string { return strings.Trim(fmt.Sprint(pids), "[]") }

// findLocked finds a GPU by UUID, PCI address or index.
func (n *Node) findLocked(id string) *device {
	for _, g := range n.devices {
		if string(g.uuid) == id || fmt.Sprint(g.index) == id || samePCI(g.cfg.PCI, id) {
			return g
		}
	}
	return nil
}

// samePCI compares PCI addresses. The domain may have 4 or 8 digits, or be missing.
func samePCI(a, b string) bool {
	norm := func(s string) string {
		s = strings.ToLower(s)
		if strings.Count(s, ":") == 1 {
			s = "0:" + s
		}
		return strings.TrimLeft(s, "0")
	}
	return strings.Contains(b, ":") && norm(a) == norm(b)
}

func (n *Node) changed() {
	n.mu.Lock()
	f := n.hooks.Changed
	n.mu.Unlock()
	if f != nil {
		f()
	}
}

func (n *Node) kernel(level int, text string) {
	n.mu.Lock()
	f := n.hooks.Kernel
	n.mu.Unlock()
	if f != nil {
		f(level, text)
	}
}
