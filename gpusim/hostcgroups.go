package gpusim

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// HostCgroups are the cgroups of this host, in its cgroup v2 hierarchy.
type HostCgroups struct {
	// EveryDmem: every cgroup counts as one with the files of the dmem controller, for hosts whose kernel has none.
	EveryDmem bool

	once sync.Once
	root string
}

var _ Cgroups = (*HostCgroups)(nil)

// Root is where the hierarchy is mounted; empty when it is not.
func (h *HostCgroups) Root() string {
	h.once.Do(func() {
		f, err := os.Open("/proc/self/mountinfo")
		if err != nil {
			return
		}
		defer f.Close()
		for in := bufio.NewScanner(f); in.Scan(); {
			// id parent major:minor root mountpoint options fields… - type source options
			before, after, _ := strings.Cut(in.Text(), " - ")
			if words := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(words) > 4 {
				h.root = words[4]
				return
			}
		}
	})
	return h.root
}

// Of reads the cgroup of a process.
func (h *HostCgroups) Of(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if at, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok && h.Root() != "" {
			return filepath.Join(h.Root(), at), nil
		}
	}
	return "", fmt.Errorf("pid %d is in no cgroup v2", pid)
}

// ID is the inode of the cgroup's directory.
func (h *HostCgroups) ID(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0
	}
	return st.Ino
}

// Dmem reports whether the cgroup has a limit of the dmem controller.
func (h *HostCgroups) Dmem(path string) bool {
	_, err := os.Stat(filepath.Join(path, "dmem.max"))
	return err == nil || h.EveryDmem
}

// HasDmem reports whether the hierarchy has the dmem controller.
func (h *HostCgroups) HasDmem() bool {
	b, err := os.ReadFile(filepath.Join(h.Root(), "cgroup.controllers"))
	return err == nil && strings.Contains(" "+strings.TrimSpace(string(b))+" ", " dmem ")
}
