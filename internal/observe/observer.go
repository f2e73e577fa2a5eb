package observe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/mps"
)

// Driver reads GPUs.
type Driver interface {
	Node(ctx context.Context) (gpu.NodeInfo, error)
	Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error)
	Profiles(ctx context.Context, id gpu.UUID) (gpu.Profiles, error)
}

// Slices reads cgroup slices.
type Slices interface {
	Slices(ctx context.Context) ([]cgroup.SliceState, error)
}

// LoginFilters reads the login filters of cgroups.
type LoginFilters interface {
	Filters(ctx context.Context) ([]device.LoginFilterState, error)
}

// MPS reads MPS control daemons.
type MPS interface {
	// Observe reads the state of the control daemon of one device; nil when none was requested.
	Observe(ctx context.Context, d mps.Device) *mps.State
	// ObserveInstances reads those of the MIG instances of one GPU. at are the placements where instances may be.
	ObserveInstances(ctx context.Context, id gpu.UUID, at []gpu.Placement) []*mps.State
	// Program identifies the installed control program.
	Program(ctx context.Context) mps.Program
}

// Observer reads the node. Set the fields before the first use.
type Observer struct {
	Driver       Driver
	Slices       Slices
	MPS          MPS
	LoginFilters LoginFilters // nil: without login filters
	HostRoot     string
	Now          func() time.Time
	// Recall returns what a GPU was in a previous run of the daemon; nil: nothing is known.
	Recall func(gpu.UUID) (gpu.Identity, bool)
	// Expected returns the GPUs that the spec in force selected when it was applied; nil: none.
	Expected func() []gpu.UUID

	// Ended reports whether a process has ended. A driver may list it for a moment longer, and nothing is to be refused, or stopped,
	// because of it then. nil: the processes are as the driver lists them.
	Ended func(pid int) bool

	// Assume returns the profiles that a GPU is known to have, where the driver reports none because MIG mode is off; nil: none is known.
	Assume func(id gpu.Identity, driver string) *gpu.Profiles

	mu       locks.Mutex[locks.Observer] // one observation at a time; guards what follows
	seq      uint64
	info     *gpu.NodeInfo // nil: query again
	epoch    Epoch
	profiles map[gpu.UUID]*gpu.Profiles
	last     atomic.Pointer[Node]
}

// Last returns the newest observation; nil before the first.
func (o *Observer) Last() *Node { return o.last.Load() }

// Invalidate makes the next observation query the driver again for what usually does not change.
func (o *Observer) Invalidate() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.info, o.profiles = nil, nil
}

// Observe reads everything once: with a valid cache one message for each GPU. What a caller reads who goes away meanwhile, or whose time
// is over before the reading begins, fails because of that: it says nothing of the node, and is not kept.
func (o *Observer) Observe(ctx context.Context) *Node {
	o.mu.Lock()
	defer o.mu.Unlock()
	over := ctx.Err() != nil
	o.seq++
	n := &Node{Seq: o.seq, At: o.Now(), Epoch: ReadEpoch(o.HostRoot)}
	if n.Epoch != o.epoch {
		o.epoch, o.info, o.profiles = n.Epoch, nil, nil
	}
	o.slices(ctx, n)
	if o.LoginFilters != nil {
		n.LoginFilters, n.LoginFiltersErr = o.LoginFilters.Filters(ctx)
	}
	o.gpus(ctx, n)
	if !over && !errors.Is(ctx.Err(), context.Canceled) || o.last.Load() == nil {
		o.last.Store(n)
	}
	return n
}

func (o *Observer) slices(ctx context.Context, n *Node) {
	n.Slices, n.SlicesErr = o.Slices.Slices(ctx)
	slices.SortFunc(n.Slices, func(a, b cgroup.SliceState) int {
		return strings.Compare(a.Name.Tenant+"/"+a.Name.Grant, b.Name.Tenant+"/"+b.Name.Grant)
	})
}

func (o *Observer) gpus(ctx context.Context, n *Node) {
	before := o.last.Load()
	if o.info == nil {
		info, err := o.Driver.Node(ctx)
		if err != nil {
			n.DriverErr = err
			if before != nil {
				n.Driver, n.Missing = before.Driver, before.Missing
				for _, g := range before.GPUs {
					n.GPUs = append(n.GPUs, lastKnown(g, g.Identity, err, n.Epoch != before.Epoch))
				}
			}
			return
		}
		o.info = &info
	}
	n.Driver = *o.info
	n.GPUs = make([]GPU, len(o.info.GPUs))
	if o.profiles == nil {
		o.profiles = map[gpu.UUID]*gpu.Profiles{}
	}
	var wg sync.WaitGroup
	var mu locks.Mutex[locks.Leaf] // guards o.profiles among the goroutines
	for i, id := range o.info.GPUs {
		wg.Go(func() {
			mu.Lock()
			known := o.profiles[id.UUID]
			mu.Unlock()
			g := o.gpu(ctx, id, known)
			if g.Err != nil && before != nil {
				if old, ok := before.GPU(id.UUID); ok {
					g = lastKnown(*old, id, g.Err, n.Epoch != before.Epoch)
				}
			}
			mu.Lock()
			if o.profiles[id.UUID] = g.Profiles; g.ProfilesAssumed {
				o.profiles[id.UUID] = nil
			}
			mu.Unlock()
			n.GPUs[i] = g
		})
	}
	wg.Wait()
	for i := range n.GPUs {
		if err := n.GPUs[i].Err; errors.Is(err, gpu.ErrParked) {
			n.DriverErr, o.info = err, nil // It was parked during the observation.
		}
		// A lost driver or GPU may return with other numbers.
		if err := n.GPUs[i].Err; errors.Is(err, gpu.ErrLost) || errors.Is(err, gpu.ErrNotLoaded) || errors.Is(err, gpu.ErrNotFound) {
			o.info = nil
		}
	}
	o.recall(n.GPUs)
	n.Missing = o.missing(n.GPUs)
	slices.SortFunc(n.GPUs, func(a, b GPU) int { return a.Identity.Index - b.Identity.Index })
}

// recall gives the GPUs that could not be read since the daemon started the index and the model that they had, unless another
// GPU has that index now. Their device nodes stay unknown.
func (o *Observer) recall(gpus []GPU) {
	for i := range gpus {
		id := &gpus[i].Identity
		if o.Recall == nil || id.Index >= 0 {
			continue
		}
		was, ok := o.Recall(id.UUID)
		if !ok || slices.ContainsFunc(gpus, func(g GPU) bool { return g.Identity.Index == was.Index }) {
			continue
		}
		id.Index, id.PCI, id.Model = was.Index, was.PCI, was.Model
		id.Memory, id.NUMANode, id.Display = was.Memory, was.NUMANode, was.Display
	}
}

// Expect finds the missing GPUs of a spec that came into force after the last observation. It reads nothing.
func (o *Observer) Expect() {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := *o.last.Load()
	if n.DriverErr == nil {
		n.Missing = o.missing(n.GPUs)
	}
	o.last.Store(&n)
}

// missing are the expected GPUs that are not there.
func (o *Observer) missing(gpus []GPU) []gpu.Identity {
	if o.Expected == nil {
		return nil
	}
	var out []gpu.Identity
	for _, id := range o.Expected() {
		if slices.ContainsFunc(gpus, func(g GPU) bool { return g.Identity.UUID == id }) {
			continue
		}
		was, ok := gpu.Identity{}, false
		if o.Recall != nil {
			was, ok = o.Recall(id)
		}
		if was.UUID = id; !ok || slices.ContainsFunc(gpus, func(g GPU) bool { return g.Identity.Index == was.Index }) {
			was.Index = -1
		}
		if slices.ContainsFunc(gpus, func(g GPU) bool { return g.Identity.PCI == was.PCI }) {
			was.PCI = ""
		}
		out = append(out, was)
	}
	slices.SortFunc(out, func(a, b gpu.Identity) int { return strings.Compare(string(a.UUID), string(b.UUID)) })
	return out
}

// lastKnown is the last observation of a GPU with its present identity. The identity of a lost GPU has little more than an
// error: then the old one is kept. Instances do not survive an epoch, so in a new epoch none is known.
func lastKnown(old GPU, id gpu.Identity, err error, newEpoch bool) GPU {
	if newEpoch {
		old.Instances = nil
	}
	if id.Error == "" {
		old.Identity = id
	}
	old.Err = err
	return old
}

func (o *Observer) gpu(ctx context.Context, id gpu.Identity, profiles *gpu.Profiles) GPU {
	g := GPU{Snapshot: gpu.Snapshot{Identity: id}, Profiles: profiles}
	if o.MPS != nil {
		g.MPS = o.MPS.Observe(ctx, mps.Whole(id.UUID))
	}
	s, err := o.Driver.Snapshot(ctx, id.UUID)
	if o.MPS != nil {
		g.InstanceMPS = o.MPS.ObserveInstances(ctx, id.UUID, placements(&s))
	}
	if err != nil {
		g.Err = err
		return g
	}
	if o.Ended != nil {
		// The list may be that of another reader, too.
		s.Processes = slices.DeleteFunc(slices.Clone(s.Processes), func(p gpu.Process) bool { return o.Ended(p.PID) })
	}
	g.Snapshot, g.ReadAt, g.UtilizationReadAt = s, o.Now(), o.Now()
	if profiles == nil && s.MIG.Capable {
		p, err := o.Driver.Profiles(ctx, id.UUID)
		switch {
		case err == nil:
			g.Profiles = &p
		case errors.Is(err, gpu.ErrNotSupported) && !s.MIG.Current && o.Assume != nil:
			g.Profiles = o.Assume(s.Identity, o.info.DriverVersion)
			g.ProfilesAssumed = g.Profiles != nil
		} // Otherwise they are queried again next time; a plan that needs profiles reports that they are missing.
	}
	return g
}

// placements are those of the instances of a GPU.
func placements(s *gpu.Snapshot) []gpu.Placement {
	at := make([]gpu.Placement, len(s.Instances))
	for i := range s.Instances {
		at[i] = s.Instances[i].Placement
	}
	return at
}

// ReadEpoch reads the epoch from the host.
func ReadEpoch(root string) Epoch {
	var e Epoch
	if b, err := boundedread.Trusted(filepath.Join(root, "proc/sys/kernel/random/boot_id"), boundedread.Value); err == nil {
		e.Boot = strings.TrimSpace(string(b))
	}
	// The module's directory in sysfs was created when it was loaded.
	if i, err := os.Stat(filepath.Join(root, "sys/module/nvidia")); err == nil {
		e.Driver = strconv.FormatInt(i.ModTime().UnixNano(), 36)
	}
	return e
}
