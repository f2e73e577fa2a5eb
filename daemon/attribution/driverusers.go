package attribution

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// DriverUser is a process that has device nodes of the driver open: the kernel does not unload the driver's modules while it has.
type DriverUser struct {
	PID   int
	UID   uint32
	Name  string
	Unit  string // of systemd; empty without one
	Lease string
	Nodes []string // below /dev, sorted; "MAJOR:MINOR" if the name is not known
}

// DriverUsers finds the processes that have a device node of the driver open: of a GPU, of the driver as a whole, or of unified
// memory. complete is false if there may be more. It asks the kernel and not the driver, so it works without one.
func (attr *Attribution) DriverUsers(ctx context.Context) (users []DriverUser, complete bool) {
	pids, err := procfs.PIDs()
	if err != nil {
		attr.Log.Warn("cannot list the processes that use the driver", "error", err)
		return nil, false
	}
	host, err := attr.Hosts.At(nil)
	if err != nil {
		attr.Log.Warn("cannot list the processes that use the driver", "error", err)
		return nil, false
	}
	majors, rules := map[uint32]bool{}, map[uint64]bool{}
	for name, major := range host.Majors {
		if strings.HasPrefix(name, "nvidia") {
			majors[major] = true
		}
	}
	for _, nodes := range host.DRI {
		for _, r := range nodes {
			rules[unix.Mkdev(r.Major, r.Minor)] = true
		}
	}
	isNode := func(f procfs.OpenFile) bool {
		return f.Type == 'c' && (majors[unix.Major(f.Rdev)] || rules[f.Rdev])
	}
	if filepath.Clean(attr.HostRoot) != "/" {
		isNode = virtualNodes(attr.HostRoot)
	}
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	nodes := map[int]map[string]bool{}
	unread, err := procfs.WalkOpenFiles(ctx, pids, func(f procfs.OpenFile) {
		if !isNode(f) || f.OnlyNamed() {
			return
		}
		if nodes[f.PID] == nil {
			nodes[f.PID] = map[string]bool{}
		}
		_, name, _ := strings.Cut(f.Name, "/dev/")
		number := fmt.Sprintf("%d:%d", unix.Major(f.Rdev), unix.Minor(f.Rdev)) // of a node whose name is too long
		nodes[f.PID][cmp.Or(name, f.Name, number)] = true
	})
	if err != nil {
		attr.Log.Warn("the list of processes that use the driver is not complete", "error", err)
	}
	for _, pid := range slices.Sorted(maps.Keys(nodes)) {
		st, err := procfs.Read(pid)
		if err != nil || st.Dead() {
			continue // It has exited.
		}
		u := DriverUser{PID: pid, Name: st.Name, Nodes: slices.Sorted(maps.Keys(nodes[pid]))}
		u.UID, _ = procfs.UID(pid) // The process has exited: it is shown for the last time.
		if cg, err := procfs.Cgroup(pid); err == nil {
			u.Unit = unitOf(cg)
		}
		u.Lease, _ = attr.LeaseOf(pid)
		users = append(users, u)
	}
	return users, err == nil && unread == 0
}

// virtualNodes recognizes the device nodes of a virtual host by the file: other virtual hosts use the same numbers.
func virtualNodes(root string) func(procfs.OpenFile) bool {
	type file struct{ dev, ino uint64 }
	known := map[file]bool{}
	for _, pattern := range []string{"dev/nvidia*", "dev/nvidia-caps/*"} {
		paths, _ := filepath.Glob(filepath.Join(root, pattern)) // It fails only for invalid patterns.
		for _, p := range paths {
			var st unix.Stat_t
			if err := unix.Stat(p, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
				known[file{st.Dev, st.Ino}] = true
			}
		}
	}
	return func(f procfs.OpenFile) bool { return known[file{f.Dev, f.Ino}] }
}
