package cgroup

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

const (
	// longWrite is a write of cgroup.freeze for which the other goroutines must not wait. One takes 10 to 50 µs; more in a cgroup of
	// thousands of threads, and while the kernel moves a process between cgroups: that holds the lock of all cgroups, for milliseconds
	// where it waits for an RCU grace period (cgroup_attach_lock of Linux).
	longWrite = time.Millisecond
	// longFor is how long the Go runtime knows of all writes after a long one.
	longFor = 10 * time.Second
)

// writeTimes is what the last writes of cgroup.freeze took. While they are short, the Go runtime need not know of them: to tell it wakes
// its monitor thread each time, which then reads the clock until the daemon waits again. With 64 time-sliced leases that was a fifth of
// the daemon's CPU time. The price is that the daemon waits for the first write that is long, which happens once in longFor at most.
type writeTimes struct {
	longUntil atomic.Int64 // on the clock of the boot; 0: there was none
}

// short reports whether the next write is expected to be short.
func (w *writeTimes) short(now time.Duration) bool { return now >= time.Duration(w.longUntil.Load()) }

// write is one write of a file.
type write struct {
	err       unix.Errno
	ended     time.Duration // on the clock of the boot
	took      time.Duration
	waits     int64 // how often its thread waited in it
	preempted int64 // how often its thread lost its processor to another one
}

// long reports whether the write itself took long. Whether its thread had a processor says nothing about the next one.
func (w *write) long() bool { return w.took >= longWrite && (w.waits > 0 || w.preempted == 0) }

func (w *writeTimes) note(done *write) {
	if done.long() {
		w.longUntil.Store(int64(done.ended + longFor))
	}
}

// writeUnseen writes to a file without the Go runtime. Where another thread executes the goroutine at the end, the waits are
// not those of the write, and count as such: the runtime then knows of the next writes.
func writeUnseen(fd uintptr, value []byte) (w write) {
	var before, after unix.Rusage
	began := procfs.BootTime()
	threadUsage(&before)
	_, _, w.err = unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&value[0])), uintptr(len(value)))
	threadUsage(&after)
	w.ended = procfs.BootTime()
	w.took, w.waits, w.preempted = w.ended-began, after.Nvcsw-before.Nvcsw, after.Nivcsw-before.Nivcsw
	return w
}

// threadUsage reads what the calling thread has used. It cannot fail: the arguments are valid.
func threadUsage(u *unix.Rusage) {
	_, _, _ = unix.RawSyscall(unix.SYS_GETRUSAGE, unix.RUSAGE_THREAD, uintptr(unsafe.Pointer(u)), 0)
}
