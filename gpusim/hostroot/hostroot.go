// Package hostroot writes the files of the kernel and of an installed driver for a virtual node into a directory: the
// library, /proc, /sys and /dev. It updates the files when the node changes.
package hostroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/durable"
)

// The character device majors. The first is assigned to NVIDIA; the kernel allocates the others dynamically.
const (
	MajorGPU  = 195
	MajorUVM  = 509
	MajorCaps = 237
	majorDRM  = 226
)

// The minors of major 195 that are not GPUs.
const (
	minorCtl     = 255
	minorModeset = 254
)

// Options configures a host root.
type Options struct {
	// Library is the file that is installed as libnvidia-ml.so.1; empty: none is installed.
	Library string
	// Program is the executable of gpusim; the vendor's tools are links to it. Empty: no tools.
	Program string
	// Mknod creates real character device nodes, which needs root; otherwise they are regular files.
	Mknod bool
}

// Root is a host root that follows a node.
type Root struct {
	dir  string
	node *gpusim.Node
	opt  Options

	mu    sync.Mutex // serialises writing
	loads int        // the last driver load that was written
	drm   bool       // the graphics nodes were written
	kmsg  *os.File
	seq   int
	since time.Time
}

// Write creates the root and registers hooks with the node, so that changes of the node update it.
func Write(dir string, node *gpusim.Node, opt Options) (*Root, error) {
	r := &Root{dir: dir, node: node, opt: opt, since: time.Now()}
	if err := r.install(); err != nil {
		return nil, err
	}
	if err := r.boot(); err != nil {
		return nil, err
	}
	node.SetHooks(gpusim.Hooks{
		Changed: func() { r.log(r.Sync()) },
		Booted:  func() { r.log(r.boot()) },
		Kernel:  func(level int, text string) { r.Kernel(level, text) },
	})
	return r, nil
}

// log writes an error to the kernel log of the node.
func (r *Root) log(err error) {
	if err != nil {
		r.Kernel(3, "gpusim: "+err.Error())
	}
}

func (r *Root) path(parts ...string) string {
	return filepath.Join(append([]string{r.dir}, parts...)...)
}

// install installs the library and the tools.
func (r *Root) install() error {
	for _, d := range []string{"usr/lib", "usr/bin", "dev", "etc", "run"} {
		if err := durable.MakeDirectories(r.path(d), 0o755); err != nil {
			return fmt.Errorf("cannot create host root: %w", err)
		}
	}
	if r.opt.Library != "" {
		b, err := os.ReadFile(r.opt.Library)
		if err != nil {
			return fmt.Errorf("cannot install library: %w", err)
		}
		// A copy, because the library finds its node from its own path.
		if err := replace(r.path("usr/lib/libnvidia-ml.so.1"), b, 0o755); err != nil {
			return err
		}
		if err := link("libnvidia-ml.so.1", r.path("usr/lib/libnvidia-ml.so")); err != nil {
			return err
		}
	}
	if r.opt.Program != "" {
		for _, tool := range []string{"nvidia-cuda-mps-control", "nvidia-smi", "nvidia-modprobe"} {
			if err := link(r.opt.Program, r.path("usr/bin", tool)); err != nil {
				return err
			}
		}
	}
	return nil
}

func link(target, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot replace link: %w", err)
	}
	if err := os.Symlink(target, path); err != nil {
		return fmt.Errorf("cannot create link: %w", err)
	}
	return nil
}

// replace writes a file atomically.
func replace(path string, b []byte, mode os.FileMode) error {
	if err := durable.MakeDirectories(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot write host root: %w", err)
	}
	tmp := path + ".new"
	_ = os.Remove(tmp)
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("cannot write host root: %w", err)
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return fmt.Errorf("cannot write host root: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("cannot write host root: %w", err)
	}
	return nil
}

// boot writes the state after a reboot: memory file systems are empty, and the boot id is new.
func (r *Root) boot() error {
	r.mu.Lock()
	// This also removes the files of a previous node.
	for _, pattern := range []string{"proc/driver", "sys/module/nvidia", "sys/bus/pci/devices/*", "dev/nvidia*", "dev/dri"} {
		paths, _ := filepath.Glob(r.path(pattern)) // it only fails for invalid patterns
		for _, p := range paths {
			if err := os.RemoveAll(p); err != nil {
				r.mu.Unlock()
				return fmt.Errorf("cannot boot host root: %w", err)
			}
		}
	}
	r.since, r.seq, r.loads = time.Now(), 0, 0
	v := r.node.View(0)
	err := replace(r.path("proc/sys/kernel/random/boot_id"), []byte(v.BootID+"\n"), 0o444)
	if err == nil {
		if r.kmsg != nil {
			_ = r.kmsg.Close()
		}
		_ = os.Remove(r.path("dev/kmsg"))
		r.kmsg, err = os.OpenFile(r.path("dev/kmsg"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	}
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("cannot boot host root: %w", err)
	}
	if v.State != gpusim.DriverAbsent {
		r.Kernel(6, "nvidia: loading out-of-tree module taints kernel.")
	}
	return r.Sync()
}

// Kernel writes a line of the kernel log in the format of /dev/kmsg.
func (r *Root) Kernel(level int, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kmsg == nil {
		return
	}
	fmt.Fprintf(r.kmsg, "%d,%d,%d,-;%s\n", level, r.seq, time.Since(r.since).Microseconds(), text)
	r.seq++
}

// Sync updates the root to the present state of the node.
func (r *Root) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Read the state with the lock held, so that of two concurrent changes the later one is written last.
	v := r.node.View(0)
	if v.State == gpusim.DriverAbsent {
		for _, dir := range []string{"sys/module/nvidia", "proc/driver/nvidia", "proc/driver/nvidia-caps"} { // An unload removes them.
			if err := os.RemoveAll(r.path(dir)); err != nil {
				return fmt.Errorf("cannot write host root: %w", err)
			}
		}
		return replace(r.path("proc/devices"), []byte("Character devices:\n  1 mem\n\nBlock devices:\n"), 0o444)
	}
	files := procFiles(v)
	if drm := slices.Contains(v.Modules, gpusim.ModuleDRM); v.Loads != r.loads || drm != r.drm {
		// The kernel makes and removes the graphics nodes itself.
		if err := errors.Join(r.prune("sys/bus/pci/devices", files), os.RemoveAll(r.path("dev/dri"))); err != nil {
			return fmt.Errorf("cannot write host root: %w", err)
		}
		r.drm = drm
	}
	if v.Loads != r.loads {
		// The module's directory is created again at a load, which is how programs detect a load.
		if err := os.RemoveAll(r.path("sys/module/nvidia")); err != nil {
			return fmt.Errorf("cannot write host root: %w", err)
		}
		for _, dir := range []string{"proc/driver/nvidia/gpus"} { // GPUs may have been removed.
			if err := r.prune(dir, files); err != nil {
				return err
			}
		}
		r.loads = v.Loads
	}
	if err := r.prune("proc/driver/nvidia/capabilities", files); err != nil {
		return err
	}
	for path, f := range files {
		if old, err := os.ReadFile(r.path(path)); err == nil && string(old) == f.text {
			continue
		}
		if err := replace(r.path(path), []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	return r.makeNodes(v)
}

// MakeNodes makes the device nodes that the present state of the node has, as the vendor's program does, and changes nothing else.
func (r *Root) MakeNodes() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.makeNodes(r.node.View(0))
}

func (r *Root) makeNodes(v gpusim.View) error {
	for _, d := range deviceNodes(v) {
		if err := r.device(d); err != nil {
			return err
		}
	}
	return nil
}

// prune removes the files below a directory that are not in keep, and directories that become empty.
func (r *Root) prune(dir string, keep map[string]file) error {
	var removed []string
	err := filepath.WalkDir(r.path(dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(r.dir, path)
		if _, ok := keep[rel]; !d.IsDir() && !ok {
			removed = append(removed, path)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read host root: %w", err)
	}
	for _, path := range removed {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("cannot write host root: %w", err)
		}
		for d := filepath.Dir(path); d != r.path(dir) && os.Remove(d) == nil; d = filepath.Dir(d) { //nolint:revive // the condition does it
		}
	}
	return nil
}

// device creates one device node if it does not exist. Nodes of destroyed instances exist until the next boot, as on real
// hosts.
func (r *Root) device(d device) error {
	return MakeNode(r.dir, d.name, d.major, d.minor, d.mode, r.opt.Mknod)
}

// MakeNode makes a device node below dev of a host root if nothing has its name; without mknod it is a regular file.
func MakeNode(dir, name string, major, minor uint32, mode os.FileMode, mknod bool) error {
	path := filepath.Join(dir, "dev", name)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := durable.MakeDirectories(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot create device node: %w", err)
	}
	if mknod {
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil {
			return fmt.Errorf("cannot create device node %s: %w", name, err)
		}
	} else if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("cannot create device node: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("cannot create device node: %w", err)
	}
	return nil
}

// Close closes the kernel log. The files are not removed, for inspection.
func (r *Root) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kmsg != nil {
		_ = r.kmsg.Close()
		r.kmsg = nil
	}
}

func lower(pci string) string { return strings.ToLower(pci) }
