package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Users mount FUSE file systems, whose directories they name.
func FuzzMounts(f *testing.F) {
	f.Add("36 35 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n")
	f.Add("40 35 0:31 / /home/red/a\\040-\\040cgroup2 rw - fuse.x x rw\n")
	f.Fuzz(func(t *testing.T, mounts string) {
		if dir, ok := findMount(mounts); ok && !strings.Contains(mounts, " - ") {
			t.Errorf("%q of %q", dir, mounts)
		}
	})
}

// The files of a cgroup are what the kernel writes; a directory of that name may be on another file system.
func FuzzFiles(f *testing.F) {
	f.Add([]byte("usage_usec 12\nuser_usec 7\n"))
	f.Add([]byte("1\n4194304\n"))
	f.Add([]byte("max\n"))
	f.Add([]byte("populated 1\nfrozen 0\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		h := Hierarchy{Mount: dir}
		for _, name := range []string{"cpu.stat", "memory.current", "memory.stat", "pids.current", "cgroup.procs", "memory.max", "cgroup.events", "cgroup.freeze", "dmem.max", "cpuset.mems"} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		pids, err := h.Direct("/")
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			if pid <= 0 {
				t.Errorf("pid %d of %q", pid, b)
			}
		}
		_, _ = h.userTime("/")
		_, _ = h.InUse("/")
		_, _ = h.Populated("/")
		_, _ = h.freezeIsSet("/")
		_, _ = h.Limits("/", []string{"memory.max"}, Limits{})
		h.HasDmemLimit("/")
		h.MemoryNodes("/")
	})
}
