package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrOutOfMemory says how a scope ended. Its words are shown to people.
var ErrOutOfMemory = errors.New("the kernel killed it: out of memory")

// memory.events of a cgroup, see Documentation/admin-guide/cgroup-v2.rst: each of its counts is also one of all above it.
const memoryEvents = "memory.events"

// SetOOMGroup lets the kernel's killer end all processes of a cgroup when it ends one of them for want of memory, wherever
// above the limit was met. The rest of a job that lost a part is of no use, and would keep the job's place. Nothing
// happens where the kernel does not count memory, as nothing can be limited there. Nobody may be in the cgroup right
// above.
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
		return fmt.Errorf("cannot make cgroup %s end as a whole when memory runs out: %w", cg, err)
	}
	return nil
}

// oomKills is how many processes of the cgroup and of those below it the kernel has killed for want of memory.
func (h Hierarchy) oomKills(cg string) (uint64, bool) {
	b, err := os.ReadFile(filepath.Join(h.Dir(cg), memoryEvents))
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

// OOMWatcher remembers which cgroups the kernel ended for want of memory, though somebody else may remove them right after
// their last process. A notification is in the kernel's queue before the processes are killed, and stays there when the
// cgroup goes; as it may tell of other events too, the count of a cgroup that stays must have grown as well. The zero value
// is ready, and holds a descriptor only while it watches.
type OOMWatcher struct {
	mu      sync.Mutex // guards what follows
	fd      int        // of inotify, valid while all is not empty
	watches map[string]*oomWatch
}

type oomWatch struct {
	watch    int32  // at the scope's cgroup
	before   uint64 // the count of the one above
	notified bool   // something happened
}

// Watch begins to watch a scope's cgroup; above is one that it is in and that stays. Where the kernel does not count
// memory there is nothing to watch.
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
		// It is watched already: what happened since then counts.
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

// Killed tells whether the kernel ended a scope that has ended, and forgets it. Of what it cannot know it says no.
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
		_, _ = unix.InotifyRmWatch(o.fd, uint32(w.watch)) // the cgroup's end may have taken it already
		delete(o.watches, id)
	}
}

func (o *OOMWatcher) closeLocked() {
	_ = unix.Close(o.fd)
	o.watches = nil
}

// readLocked takes note of all notifications so far.
func (o *OOMWatcher) readLocked() {
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(o.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return // There are no more.
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
