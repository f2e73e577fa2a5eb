//go:build cgo

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// defaultLibrary is the name that the dynamic linker resolves.
const defaultLibrary = "libnvidia-ml.so.1"

// Option changes how Open works.
type Option func(*options)

type options struct {
	library  string
	hostRoot string
	excluded []gpu.UUID
	log      *slog.Logger
}

// WithLibraryPath loads the library from this path instead of the one that the dynamic linker finds.
func WithLibraryPath(path string) Option {
	return func(o *options) {
		if path != "" {
			o.library = path
		}
	}
}

// WithHostRoot reads /proc and /sys under another root.
func WithHostRoot(root string) Option {
	return func(o *options) {
		if root != "" {
			o.hostRoot = root
		}
	}
}

// WithExcluded excludes GPUs, because they do not answer: the driver does not access them.
func WithExcluded(ids ...gpu.UUID) Option {
	return func(o *options) { o.excluded = append(o.excluded, ids...) }
}

// WithLogger sets the logger. Without it nothing is logged.
func WithLogger(log *slog.Logger) Option {
	return func(o *options) { o.log = log }
}

// Driver is gpu.Driver on the vendor's library.
type Driver struct {
	o       options
	lib     nvml.Interface
	path    string
	symbols symbols

	// rowSize is the row size of the process lists by version of the call.
	rowSize map[string]int
	version string // of the driver
	missing *gpu.MissingMIG

	// mu guards the rest. It is never held during a call of the library.
	mu      sync.Mutex
	devices map[gpu.UUID]*device
	order   []gpu.Identity // as last enumerated, by index
	changed uint64         // counts changes of handles, so that Events registers again
}

var _ gpu.Driver = (*Driver)(nil)

// Open loads and initialises the library. The error is gpu.ErrNoLibrary, ErrMissing, ErrNotLoaded, ErrVersionMismatch or
// another driver error.
func Open(opts ...Option) (*Driver, error) {
	o := options{library: defaultLibrary, hostRoot: "/", log: slog.New(slog.DiscardHandler)}
	for _, f := range opts {
		f(&o)
	}
	const op = "open the driver"
	lib, err := openLibrary(o.library)
	if err != nil {
		return nil, &gpu.Error{Op: op, Err: fmt.Errorf("%w: %w", gpu.ErrNoLibrary, err)}
	}
	found, err := findSymbols(lib.symbol)
	if err != nil {
		return nil, &gpu.Error{Op: op, Err: fmt.Errorf("%w: %s: %w", gpu.ErrMissing, lib.path, err)}
	}
	d := &Driver{
		o: o, lib: nvml.New(nvml.WithLibraryPath(o.library)), path: lib.path, symbols: found,
		devices: make(map[gpu.UUID]*device),
	}
	if ret := d.initialise(); ret != nvml.SUCCESS {
		return nil, fail(op, "", ret)
	}
	if d.symbols.has(driverVersion) {
		d.version, _ = d.lib.SystemGetDriverVersion() // empty when it fails
	}
	d.rowSize = rowSizes(d.version)
	d.missing = found.missingMIG(cmp.Or(d.nvmlVersion(), d.path))
	for _, name := range found.missing {
		o.log.Debug("the NVML library lacks a symbol", "symbol", name)
	}
	for _, loss := range found.losses() {
		o.log.Warn("the NVML library lacks symbols of a feature", "effect", loss)
	}
	return d, nil
}

// initialise does not access the GPUs. A node without GPUs is not an error.
func (d *Driver) initialise() nvml.Return {
	if !d.symbols.has(initFlags) {
		return d.lib.Init()
	}
	flags := uint32(nvml.INIT_FLAG_NO_GPUS)
	if len(d.o.excluded) > 0 {
		flags |= nvml.INIT_FLAG_NO_ATTACH // the library's default for a long time, but not documented
	}
	return d.lib.InitWithFlags(flags)
}

// Close shuts the library down.
func (d *Driver) Close() error { return fail("close the driver", "", d.lib.Shutdown()) }

// device is one GPU whose handle was read at least once.
type device struct {
	id gpu.UUID
	// replaced are the GPU instances that were created or destroyed since their use was read. Driver.mu guards it.
	replaced []uint32

	// mu serialises the calls on the GPU and guards the rest.
	mu     sync.Mutex
	handle nvml.Device
	stale  bool // the handle must be read again

	infoVersion  int                         // version of the profile information that the library supports; 0: not known
	profiles     []giProfile                 // nil: not read
	compute      map[uint32][]computeProfile // by GPU-instance profile, as an existing instance reported
	countedLinks []int                       // the NVLinks that count errors; nil: not read
	linkErrors   kept[gpu.NVLinkErrors]
	slowdown     kept[int]        // the temperature
	power        kept[powerRange] // of its limit
	maxClock     kept[uint32]     // of the SMs, in MHz
	health       kept[healthSensors]
	use          map[uint32]useSample // the last samples of its GPU instances
	countsUse    *bool                // it has the counters for them; nil: not known
	walk         bool                 // the information of compute instances does not contain their MIG device
}

// invalidate drops the values that a change of the MIG mode may change.
func (v *device) invalidate() {
	v.stale = true
	v.profiles = nil
	v.compute = nil
	v.linkErrors = kept[gpu.NVLinkErrors]{}
	v.slowdown, v.power, v.maxClock = kept[int]{}, kept[powerRange]{}, kept[uint32]{}
	v.health = kept[healthSensors]{}
}

// lockDevice locks one GPU and returns it with a valid handle. The caller unlocks it.
func (d *Driver) lockDevice(ctx context.Context, op string, id gpu.UUID) (*device, error) {
	if err := ctx.Err(); err != nil {
		return nil, refuse(op, id, fmt.Errorf("%w: %w", gpu.ErrTimeout, err))
	}
	if d.excludes(id) {
		return nil, refuse(op, id, fmt.Errorf("%w: the GPU is excluded because it did not answer", gpu.ErrTimeout))
	}
	d.mu.Lock()
	v := d.devices[id]
	if v == nil {
		v = &device{id: id, stale: true}
	}
	d.mu.Unlock()
	v.mu.Lock()
	if !v.stale {
		return v, nil
	}
	h, ret := d.handle(id)
	if ret != nvml.SUCCESS {
		v.mu.Unlock()
		return nil, fail(op, id, ret)
	}
	moved := v.handle != nil && v.handle != h
	v.handle, v.stale = h, false
	d.mu.Lock()
	if other := d.devices[id]; other != nil && other != v {
		d.mu.Unlock()
		v.mu.Unlock() // another caller was faster
		return d.lockDevice(ctx, op, id)
	}
	d.devices[id] = v
	if moved {
		d.changed++
	}
	d.mu.Unlock()
	return v, nil
}

// isGPU reports whether id is the UUID of a GPU, not of a MIG device.
func isGPU(id gpu.UUID) bool { return len(id) > 4 && id[:4] == "GPU-" }

// failed returns the error of a call on v. The handle of a lost GPU is read again.
func (v *device) failed(op string, ret nvml.Return) error {
	if sentinel(ret) == gpu.ErrLost { //nolint:errorlint // sentinel returns the bare error
		v.stale = true
	}
	return fail(op, v.id, ret)
}

// address returns the vendor's handle for calls by pointer.
func address(h nvml.Device) (unsafe.Pointer, nvml.Return) {
	p := rawHandle(h)
	if p == nil {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return p, nvml.SUCCESS
}
