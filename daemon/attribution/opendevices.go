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
	"github.com/gpushare/gpushare/internal/kernel/opener"
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
	return attr.OpenNodes(ctx, gpus).Devices()
}

// OpenNodes finds the device nodes of GPUs that all processes have open.
func (attr *Attribution) OpenNodes(ctx context.Context, gpus []observe.GPU) *OpenNodes {
	pids, err := procfs.PIDs()
	if err != nil {
		attr.Log.Warn("cannot list the processes that have GPUs open", "error", err)
		return &OpenNodes{attr: attr}
	}
	return attr.OpenNodesOf(ctx, gpus, pids...)
}

// OpenNodes is device nodes of GPUs that processes have open, as they were listed. One goroutine uses it at a time.
type OpenNodes struct {
	attr     *Attribution
	nodes    []openNode
	keys     map[fileKey]nodeTarget
	complete bool // there are no others

	// What Own has found; nil: nothing yet.
	byPID   map[int][]openNode
	owns    map[int]planner.OpenDevices
	openers map[openedBy]bool
	failed  error // why it is not known who opened them
}

// openNode is a descriptor of a device node.
type openNode struct {
	file procfs.OpenFile
	key  fileKey
	at   nodeTarget
}

// openedBy says that a process has a device node open that a user opened.
type openedBy struct {
	pid int
	uid uint32
	key fileKey
}

// Devices returns all of them.
func (n *OpenNodes) Devices() planner.OpenDevices {
	o := collect(n.nodes)
	o.Complete = n.complete
	return o
}

// Own returns those of a process that its user opened, or that it has mapped. Another user may have passed it the others, which is no act
// of the process; failed is why it is not known who opened them.
func (n *OpenNodes) Own(ctx context.Context, pid int) (own planner.OpenDevices, failed error) {
	if n.byPID == nil {
		n.byPID, n.owns = map[int][]openNode{}, map[int]planner.OpenDevices{}
		for i := range n.nodes {
			n.byPID[n.nodes[i].file.PID] = append(n.byPID[n.nodes[i].file.PID], n.nodes[i])
		}
		n.openers, n.failed = n.attr.openersOf(ctx, n.keys)
	}
	own, known := n.owns[pid]
	if !known {
		uid, err := procfs.UID(pid)
		own = collect(slices.DeleteFunc(n.byPID[pid], func(o openNode) bool {
			opened := err == nil && n.openers[openedBy{pid, uid, o.key}]
			return !opened && !procfs.Mapped(&o.file)
		}))
		n.owns[pid] = own
	}
	return own, n.failed
}

// openersOf asks the kernel which users opened the device nodes that processes have open.
func (attr *Attribution) openersOf(ctx context.Context, nodes map[fileKey]nodeTarget) (map[openedBy]bool, error) {
	keys := map[opener.File]fileKey{}
	var files []opener.File
	for key := range nodes {
		f := opener.File{Device: opener.Number(unix.Major(key.rdev), unix.Minor(key.rdev))}
		if key.rdev == 0 {
			f = opener.File{Device: opener.Number(unix.Major(key.dev), unix.Minor(key.dev)), Ino: key.ino}
		}
		keys[f] = key
		files = append(files, f)
	}
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	opened, err := attr.openers.Read(ctx, files)
	if err != nil {
		return nil, err
	}
	out := map[openedBy]bool{}
	for _, o := range opened {
		out[openedBy{o.PID, o.UID, keys[o.File]}] = true
	}
	return out, nil
}

// collect returns which processes have each GPU open.
func collect(nodes []openNode) planner.OpenDevices {
	o := planner.OpenDevices{
		GPUs:      map[gpu.UUID][]int{},
		Instances: map[planner.InstanceKey][]int{},
		Compute:   map[planner.ComputeKey][]int{},
	}
	for i := range nodes {
		at, pid := nodes[i].at, nodes[i].file.PID
		if of := (planner.ComputeKey{GPU: at.GPU, Device: at.device}); at.device != "" && !slices.Contains(o.Compute[of], pid) {
			o.Compute[of] = append(o.Compute[of], pid)
		}
		switch {
		case at.whole && !slices.Contains(o.GPUs[at.GPU], pid):
			o.GPUs[at.GPU] = append(o.GPUs[at.GPU], pid)
		case !at.whole && !slices.Contains(o.Instances[at.InstanceKey], pid):
			o.Instances[at.InstanceKey] = append(o.Instances[at.InstanceKey], pid)
		}
	}
	return o
}

// OpenNodesOf is OpenNodes for some processes.
func (attr *Attribution) OpenNodesOf(ctx context.Context, gpus []observe.GPU, pids ...int) *OpenNodes {
	n := &OpenNodes{attr: attr}
	host, err := attr.Hosts.At(attr.Observer.Last())
	if err != nil {
		attr.Log.Warn("cannot list the processes that have GPUs open", "error", err)
		return n
	}
	realHost := filepath.Clean(attr.HostRoot) == "/"
	n.keys = deviceNodes(&host, gpus, func(name string, major, minor uint32) (fileKey, bool) {
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
		if at, ok := n.keys[key]; ok && !f.OnlyNamed() {
			n.nodes = append(n.nodes, openNode{f, key, at})
		}
	})
	if err != nil {
		attr.Log.Warn("the list of processes that have GPUs open is not complete", "error", err)
	}
	n.complete = err == nil && unread == 0
	return n
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
