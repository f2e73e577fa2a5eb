// Package hostroot writes what the kernel and an installed driver show of a virtual node into a directory: the library,
// /proc, /sys and /dev. It follows the node and decides nothing about it.
package hostroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpusim"
)

// The character device majors. The first is NVIDIA's own; the others are given out by the kernel as it pleases.
const (
	MajorGPU  = 195
	MajorUVM  = 509
	MajorCaps = 237
)

// Minors of the devices of major 195 that are no GPU.
const (
	minorCtl     = 255
	minorModeset = 254
)

// Options say how a root is written.
type Options struct {
	// Library is the file that becomes libnvidia-ml.so.1; empty: none is installed.
	Library string
	// Program is gpusim's own executable, to which the vendor's tools are links; empty: none.
	Program string
	// Mknod makes real character device nodes, which needs privilege; otherwise they are plain files.
	Mknod bool
}

// Root is a host root that is being kept.
type Root struct {
	dir  string
	node *gpusim.Node
	opt  Options

	mu    sync.Mutex // serialises writing
	loads int        // driver loads whose traces are written
	kmsg  *os.File
	seq   int
	since time.Time
}

// Write makes the root and hooks it to the node, so that it follows.
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

// log keeps an error where whoever watches the node sees it: its kernel log.
func (r *Root) log(err error) {
	if err != nil {
		r.Kernel(3, "gpusim: "+err.Error())
	}
}

func (r *Root) path(parts ...string) string {
	return filepath.Join(append([]string{r.dir}, parts...)...)
}

// install puts the library and the tools in place.
func (r *Root) install() error {
	for _, d := range []string{"usr/lib", "usr/bin", "dev", "etc", "run"} {
		if err := os.MkdirAll(r.path(d), 0o755); err != nil {
			return fmt.Errorf("cannot make host root: %w", err)
		}
	}
	if r.opt.Library != "" {
		b, err := os.ReadFile(r.opt.Library)
		if err != nil {
			return fmt.Errorf("cannot install library: %w", err)
		}
		// A copy, since the library finds its node from where it lies.
		if err := replace(r.path("usr/lib/libnvidia-ml.so.1"), b, 0o755); err != nil {
			return err
		}
		if err := link("libnvidia-ml.so.1", r.path("usr/lib/libnvidia-ml.so")); err != nil {
			return err
		}
	}
	if r.opt.Program != "" {
		for _, tool := range []string{"nvidia-cuda-mps-control", "nvidia-smi"} {
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
		return fmt.Errorf("cannot make link: %w", err)
	}
	return nil
}

// replace writes a file so that a reader sees the old or the new one.
func replace(path string, b []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
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

// boot is what a reboot does: memory file systems are empty, and there is another boot id.
func (r *Root) boot() error {
	r.mu.Lock()
	// What an earlier node left in the directory goes too.
	for _, pattern := range []string{"proc/driver", "sys/module/nvidia", "sys/bus/pci/devices/*", "dev/nvidia*"} {
		paths, _ := filepath.Glob(r.path(pattern)) // it fails for bad patterns only
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

// Kernel writes a line of the kernel log, as /dev/kmsg gives it.
func (r *Root) Kernel(level int, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kmsg == nil {
		return
	}
	fmt.Fprintf(r.kmsg, "%d,%d,%d,-;%s\n", level, r.seq, time.Since(r.since).Microseconds(), text)
	r.seq++
}

// Sync brings the root to what the node is now.
func (r *Root) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Read under our lock, so that of two changes at once the later one is written last.
	v := r.node.View(0)
	if v.State == gpusim.DriverAbsent {
		return replace(r.path("proc/devices"), []byte("Character devices:\n  1 mem\n\nBlock devices:\n"), 0o444)
	}
	files := procFiles(v)
	if v.Loads != r.loads {
		// The module's directory is another one after a load, which is how a load is noticed.
		if err := os.RemoveAll(r.path("sys/module/nvidia")); err != nil {
			return fmt.Errorf("cannot write host root: %w", err)
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
	for _, d := range deviceNodes(v) {
		if err := r.device(d); err != nil {
			return err
		}
	}
	return nil
}

// prune removes the files below a directory that are no longer, and directories that they leave empty.
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

// device makes one device node if it is not there. Nodes of destroyed instances stay until the next boot, as on real hosts.
func (r *Root) device(d device) error {
	path := r.path("dev", d.name)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot make device node: %w", err)
	}
	if r.opt.Mknod {
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("cannot make device node %s: %w", d.name, err)
		}
	} else if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("cannot make device node: %w", err)
	}
	if err := os.Chmod(path, d.mode); err != nil {
		return fmt.Errorf("cannot make device node: %w", err)
	}
	return nil
}

// Close lets go of the kernel log. The files stay, to be looked at.
func (r *Root) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kmsg != nil {
		_ = r.kmsg.Close()
		r.kmsg = nil
	}
}

func lower(pci string) string { return strings.ToLower(pci) }
