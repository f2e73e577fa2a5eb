package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/isolation"
)

// openedTimeout bounds one look at every descriptor of every process.
const openedTimeout = 2 * time.Second

// nvidiaMajor is the number of the GPUs' device nodes, which is the driver's own.
const nvidiaMajor = 195

// opened is who has the device nodes of GPUs open: monitors hold a GPU so, and no list of the driver has them. The zero
// value is that nobody looked.
type opened struct {
	looked bool               // at every process
	gpus   map[gpu.UUID][]int // pids
	caps   map[instanceKey][]int
}

// instanceKey names an instance for as long as it lives.
type instanceKey struct {
	gpu gpu.UUID
	gi  uint32
}

// of gives who has a GPU open, or one of its instances.
func (o *opened) of(id gpu.UUID, in *gpu.Instance) []int {
	if in == nil {
		return o.gpus[id]
	}
	return o.caps[instanceKey{id, in.ID}]
}

// fileKey is what a device node is: its number on a real host. A virtual node's is known by the file, because the nodes of
// another virtual node have the same numbers.
type fileKey struct{ rdev, dev, ino uint64 }

// devicesOpen looks who has which GPU open. What cannot be seen is taken for not open: the driver refuses then, and names
// nobody.
func (d *Attribution) devicesOpen(ctx context.Context, gpus []observe.GPU) opened {
	o := opened{gpus: map[gpu.UUID][]int{}, caps: map[instanceKey][]int{}}
	host, err := d.hosts.At(d.observer.Last())
	if err != nil {
		d.Log.Warn("cannot see who has GPUs open", "error", err)
		return o
	}
	real := filepath.Clean(d.hostRoot) == "/"
	nodes := deviceNodes(&host, gpus, func(name string, major, minor uint32) (fileKey, bool) {
		if real {
			return fileKey{rdev: unix.Mkdev(major, minor)}, true
		}
		var st unix.Stat_t
		err := unix.Stat(filepath.Join(d.hostRoot, "dev", name), &st)
		return fileKey{dev: st.Dev, ino: st.Ino}, err == nil
	})
	ctx, cancel := context.WithTimeout(ctx, openedTimeout)
	defer cancel()
	unseen, err := procfs.Openers(ctx, "/nvidia", func(f procfs.Opened) {
		key := fileKey{dev: f.Dev, ino: f.Ino}
		if real {
			key = fileKey{rdev: f.Rdev}
		}
		at, ok := nodes[key]
		switch {
		case !ok:
		case at.whole && !slices.Contains(o.gpus[at.gpu], f.PID):
			o.gpus[at.gpu] = append(o.gpus[at.gpu], f.PID)
		case !at.whole && !slices.Contains(o.caps[at.instanceKey], f.PID):
			o.caps[at.instanceKey] = append(o.caps[at.instanceKey], f.PID)
		}
	})
	if err != nil {
		d.Log.Warn("who has GPUs open was not seen in full", "error", err)
	}
	o.looked = err == nil && unseen == 0
	return o
}

// standsFor is what a device node gives access to.
type standsFor struct {
	instanceKey
	whole bool
}

// deviceNodes finds the nodes of the GPUs and of their instances.
func deviceNodes(host *isolation.Host, gpus []observe.GPU, find func(name string, major, minor uint32) (fileKey, bool)) map[fileKey]standsFor {
	out := map[fileKey]standsFor{}
	add := func(at standsFor, name string, major, minor uint32) {
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
		add(standsFor{instanceKey{gpu: id}, true}, fmt.Sprintf("nvidia%d", minor), nvidiaMajor, uint32(minor))
		for j := range g.Instances {
			in := &g.Instances[j]
			capability := func(n uint32, ok bool) {
				if ok && haveCaps {
					add(standsFor{instanceKey{id, in.ID}, false}, fmt.Sprintf("nvidia-caps/nvidia-cap%d", n), caps, n)
				}
			}
			capability(host.Caps.GI(minor, in.ID))
			for _, c := range in.Compute {
				capability(host.Caps.CI(minor, in.ID, c.ID))
			}
		}
	}
	return out
}

// unitOf names the unit of a cgroup, and whether it is of a user's logins rather than of the system. Empty: of none.
func unitOf(cgroup string) (unit string, login bool) {
	login = strings.HasPrefix(cgroup, "/user.slice/")
	for part := range strings.SplitSeq(cgroup, "/") {
		if strings.HasPrefix(part, "user@") && login {
			continue // Everything of that user's; what is in it says more.
		}
		if strings.HasSuffix(part, ".service") || strings.HasSuffix(part, ".scope") {
			return part, login
		}
	}
	return "", login
}
