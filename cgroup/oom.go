package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// ErrOutOfMemory is how a scope ended. Its text is shown to people.
var ErrOutOfMemory = errors.New("the kernel killed it: out of memory")

// memory.events counts for the cgroup and all below it, see Documentation/admin-guide/cgroup-v2.rst.
const memoryEvents = "memory.events"

// SetOOMGroup makes the kernel kill all processes of a cgroup when it kills one of them because memory ran out, in the
// cgroup or in a parent (memory.oom.group). The rest of a job that lost a process is of no use, and would keep the job's
// GPU. It does nothing where the memory controller is missing. The parent cgroup must contain no process.
func (h Hierarchy) SetOOMGroup(cg string) error {
	above := h.Dir(path.Dir(cg))
	has, err := readWords(above, "cgroup.controllers")
	if err != nil {
		return fmt.Errorf("cannot read the controllers of cgroup %s: %w", path.Dir(cg), err)
	}
	if !slices.Contains(has, "memory") {
		return nil
	}
	on, err := readWords(above, "cgroup.subtree_control")
	if err == nil && !slices.Contains(on, "memory") {
		err = writeFile(filepath.Join(above, "cgroup.subtree_control"), "+memory")
	}
	if err == nil {
		err = writeFile(filepath.Join(h.Dir(cg), "memory.oom.group"), "1")
	}
	if err != nil {
		return fmt.Errorf("cannot set memory.oom.group of cgroup %s: %w", cg, err)
	}
	return nil
}

// oomKills is the number of processes in the cgroup and below it that the kernel has killed because memory ran out.
func (h Hierarchy) oomKills(cg string) (uint64, bool) {
	b, err := boundedread.Trusted(filepath.Join(h.Dir(cg), memoryEvents), boundedread.Value)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), " "); k == "oom_kill" {
			n, err := strconv.ParseUint(v, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// OOMWatcher finds out whether the kernel killed a scope because memory ran out, although the service manager may remove
// the cgroup immediately after its last process. The kernel queues a notification before it kills the processes, and
// keeps it when the cgroup is removed. Because the notification may report other events too, the count of a parent
// cgroup that remains must have grown as well. The zero value is ready. It has a descriptor only while it watches.
type OOMWatcher struct {
	mu      sync.Mutex // guards what follows
	fd      int        // of inotify, valid while watches is not empty
	watches map[string]*oomWatch
}

type oomWatch struct {
	watch    int32  // of the scope's cgroup
	before   uint64 // the count of the parent cgroup
	notified bool   // memory.events changed
}

// Watch starts to watch a scope's cgroup; above is a parent that remains. Without the memory controller it does nothing.
func (o *OOMWatcher) Watch(h Hierarchy, id, cg, above string) error {
	before, ok := h.oomKills(above)
	if !ok {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.watches) == 0 {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("cannot watch the memory of cgroup %s: %w", cg, err)
		}
		o.fd, o.watches = fd, map[string]*oomWatch{}
	}
	n, err := unix.InotifyAddWatch(o.fd, filepath.Join(h.Dir(cg), memoryEvents), unix.IN_MODIFY)
	switch old := o.watches[id]; {
	case err == nil && old != nil && old.watch == int32(n):
		// It is watched already: keep its count and notification.
	case err == nil:
		o.dropLocked(id)
		o.watches[id] = &oomWatch{watch: int32(n), before: before}
	case len(o.watches) == 0:
		o.closeLocked()
	}
	if err != nil && !isRemoved(err) {
		return fmt.Errorf("cannot watch the memory of cgroup %s: %w", cg, err)
	}
	return nil
}

// Killed reports whether the kernel killed a scope that has ended, and forgets the scope. When this is unknown it returns
// false.
func (o *OOMWatcher) Killed(h Hierarchy, id, cg, above string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, there := h.oomKills(cg)
	killed := there && n > 0
	if w := o.watches[id]; w != nil {
		o.readLocked()
		after, ok := h.oomKills(above)
		killed = killed || !there && w.notified && ok && after > w.before
		o.dropLocked(id)
		if len(o.watches) == 0 {
			o.closeLocked()
		}
	}
	return killed
}

// Forget stops watching a scope.
func (o *OOMWatcher) Forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watches[id] == nil {
		return
	}
	o.dropLocked(id)
	if len(o.watches) == 0 {
		o.closeLocked()
	}
}

// Close stops watching all.
func (o *OOMWatcher) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.watches) > 0 {
		o.closeLocked()
	}
}

func (o *OOMWatcher) dropLocked(id string) {
	if w := o.watches[id]; w != nil {
		_, _ = unix.InotifyRmWatch(o.fd, uint32(w.watch)) // the removal of the cgroup may have removed it already
		delete(o.watches, id)
	}
}

func (o *OOMWatcher) closeLocked() {
	_ = unix.Close(o.fd)
	o.watches = nil
}

// readLocked reads all queued notifications.
func (o *OOMWatcher) readLocked() {
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(o.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return // no more
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			watch, mask := int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[4:])
			for _, w := range o.watches {
				if w.watch == watch && mask&unix.IN_MODIFY != 0 {
					w.notified = true
				}
			}
			rest = rest[min(len(rest), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(rest[12:]))):]
		}
	}
}
