package attribution

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
)

// scanTimeout bounds one scan of every descriptor of every process.
const scanTimeout = 2 * time.Second

// nvidiaMajor is the major number of the GPUs' device nodes, which the driver has registered.
const nvidiaMajor = 195

// fileKey identifies a device node: by its number on a real host. A node of a virtual host is identified by the file,
// because other virtual hosts use the same numbers.
type fileKey struct{ rdev, dev, ino uint64 }

// OpenDevices finds the processes that have each GPU open. A descriptor that cannot be read counts as not open: the
// driver then refuses the change, without naming a process.
func (attr *Attribution) OpenDevices(ctx context.Context, gpus []observe.GPU) planner.OpenDevices {
	pids, err := procfs.PIDs()
	if err != nil {
		attr.Log.Warn("cannot list the processes that have GPUs open", "error", err)
		return noneOpen()
	}
	return attr.OpenDevicesOf(ctx, gpus, pids...)
}

func noneOpen() planner.OpenDevices {
	return planner.OpenDevices{
		GPUs:      map[gpu.UUID][]int{},
		Instances: map[planner.InstanceKey][]int{},
		Compute:   map[planner.ComputeKey][]int{},
	}
}

// OpenDevicesOf is OpenDevices for some processes.
func (attr *Attribution) OpenDevicesOf(ctx context.Context, gpus []observe.GPU, pids ...int) planner.OpenDevices {
	o := noneOpen()
	host, err := attr.Hosts.At(attr.Observer.Last())
	if err != nil {
		attr.Log.Warn("cannot list the processes that have GPUs open", "error", err)
		return o
	}
	realHost := filepath.Clean(attr.HostRoot) == "/"
	nodes := deviceNodes(&host, gpus, func(name string, major, minor uint32) (fileKey, bool) {
		if realHost {
			return fileKey{rdev: unix.Mkdev(major, minor)}, true
		}
		var st unix.Stat_t
		err := unix.Stat(filepath.Join(attr.HostRoot, "dev", name), &st)
		return fileKey{dev: st.Dev, ino: st.Ino}, err == nil
	})
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	unread, err := procfs.WalkOpenFiles(ctx, pids, func(f procfs.OpenFile) {
		key := fileKey{dev: f.Dev, ino: f.Ino}
		if realHost && f.Type != 'c' {
			return
		} else if realHost {
			key = fileKey{rdev: f.Rdev}
		}
		at, ok := nodes[key]
		if !ok || f.OnlyNamed() {
			return
		}
		if of := (planner.ComputeKey{GPU: at.GPU, Device: at.device}); at.device != "" && !slices.Contains(o.Compute[of], f.PID) {
			o.Compute[of] = append(o.Compute[of], f.PID)
		}
		switch {
		case at.whole && !slices.Contains(o.GPUs[at.GPU], f.PID):
			o.GPUs[at.GPU] = append(o.GPUs[at.GPU], f.PID)
		case !at.whole && !slices.Contains(o.Instances[at.InstanceKey], f.PID):
			o.Instances[at.InstanceKey] = append(o.Instances[at.InstanceKey], f.PID)
		}
	})
	if err != nil {
		attr.Log.Warn("the list of processes that have GPUs open is not complete", "error", err)
	}
	o.Complete = err == nil && unread == 0
	return o
}

// nodeTarget is what a device node gives access to.
type nodeTarget struct {
	planner.InstanceKey
	device gpu.UUID // of a compute instance
	whole  bool
}

// deviceNodes finds the device nodes of the GPUs and of their instances.
func deviceNodes(
	host *isolation.Host, gpus []observe.GPU, find func(name string, major, minor uint32) (fileKey, bool),
) map[fileKey]nodeTarget {
	out := map[fileKey]nodeTarget{}
	add := func(at nodeTarget, name string, major, minor uint32) {
		if key, ok := find(name, major, minor); ok {
			out[key] = at
		}
	}
	caps, haveCaps := host.Majors["nvidia-caps"]
	for i := range gpus {
		g := &gpus[i]
		id, minor := g.Identity.UUID, g.Identity.Minor
		if g.Identity.Error != "" {
			continue // Its number is not known.
		}
		add(nodeTarget{InstanceKey: planner.InstanceKey{GPU: id}, whole: true}, fmt.Sprintf("nvidia%d", minor), nvidiaMajor, uint32(minor))
		for j := range g.Instances {
			in := &g.Instances[j]
			capability := func(device gpu.UUID, n uint32, ok bool) {
				if ok && haveCaps {
					add(
						nodeTarget{InstanceKey: planner.InstanceKey{GPU: id, GI: in.ID}, device: device},
						fmt.Sprintf("nvidia-caps/nvidia-cap%d", n), caps, n,
					)
				}
			}
			n, ok := host.Caps.GI(minor, in.ID)
			capability("", n, ok)
			for _, c := range in.Compute {
				n, ok := host.Caps.CI(minor, in.ID, c.ID)
				capability(c.UUID, n, ok)
			}
		}
	}
	return out
}

// unitOf returns the unit of a cgroup; empty if there is none.
func unitOf(cgroup string) string {
	login := stop.InLogin(cgroup)
	for part := range strings.SplitSeq(cgroup, "/") {
		if strings.HasPrefix(part, "user@") && login {
			continue // The user's manager: a unit below it is more exact.
		}
		if strings.HasSuffix(part, ".service") || strings.HasSuffix(part, ".scope") {
			return part
		}
	}
	return ""
}
