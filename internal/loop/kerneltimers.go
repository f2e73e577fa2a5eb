package loop

import (
	"container/heap"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernelTimers are all timers of the loops, in one timer of the kernel.
//
// A process that mostly waits pays for a timer of the Go runtime several times. The thread that waits for it wakes up twice, because
// epoll_wait(2) has no time shorter than a millisecond, and the runtime's monitor thread, which wakes up for each timer too, reads the
// clock every 20 µs meanwhile: with 64 time-sliced leases that was a quarter of the daemon's CPU time. A timerfd is one wake-up, and the
// monitor sleeps on. It is exact as well, where a runtime's timer is up to a millisecond late.
type kernelTimers struct {
	file *os.File
	raw  syscall.RawConn
	fd   uintptr // of file

	mu    sync.Mutex // guards the fields below, and those of its timers
	heap  timerHeap
	armed time.Time // when the kernel's timer ends; zero: it does not run
	value unix.ItimerSpec
	wakes uint64 // how often it has ended
}

// UseKernelTimers lets the timers that are created from now on be those of the kernel, as long as the process runs. A program whose
// tests run in virtual time calls it in main only.
func UseKernelTimers() error {
	k, err := newKernelTimers()
	if err != nil {
		return err
	}
	if !kernelClock.CompareAndSwap(nil, k) {
		return k.file.Close()
	}
	go k.run() // ends with the process
	return nil
}

func newKernelTimers() (*kernelTimers, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create a timer: %w", os.NewSyscallError("timerfd_create", err))
	}
	k := &kernelTimers{file: os.NewFile(uintptr(fd), "timerfd"), fd: uintptr(fd)}
	if k.raw, err = k.file.SyscallConn(); err != nil {
		k.file.Close()
		return nil, fmt.Errorf("cannot wait for a timer: %w", err)
	}
	return k, nil
}

// run ends the timers that are due, until the file is closed.
func (k *kernelTimers) run() {
	for k.wait() {
		k.end(time.Now())
	}
}

// wait returns when the kernel's timer has ended; false: the file was closed. The calls cannot block, so the runtime need not know of
// them: that would wake its monitor thread.
func (k *kernelTimers) wait() bool {
	return k.raw.Read(func(fd uintptr) bool {
		var count [8]byte
		_, _, err := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&count)), uintptr(len(count)))
		return err != unix.EAGAIN && err != unix.EINTR
	}) == nil
}

// end ends the timers that are due.
func (k *kernelTimers) end(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wakes++
	k.armed = time.Time{}
	for len(k.heap) > 0 && !k.heap[0].when.After(now) {
		t := heap.Pop(&k.heap).(*Timer) //nolint:forcetypeassert // It has no others.
		t.c <- now                      // There is room: set has emptied it.
	}
	k.armLocked(now)
}

// set lets a timer end after d.
func (k *kernelTimers) set(t *Timer, d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeLocked(t)
	now := time.Now()
	t.when = now.Add(d)
	heap.Push(&k.heap, t)
	k.armLocked(now)
}

func (k *kernelTimers) remove(t *Timer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeLocked(t)
}

// removeLocked takes a timer away, with the value that it may have sent. The kernel's timer is not changed: in vain it ends at most
// once, and most timers that are stopped are set again for a later time.
func (k *kernelTimers) removeLocked(t *Timer) {
	if t.place > 0 {
		heap.Remove(&k.heap, t.place-1)
	}
	select {
	case <-t.c:
	default:
	}
}

// armLocked sets the kernel's timer if it does not end in time for the first timer.
func (k *kernelTimers) armLocked(now time.Time) {
	if len(k.heap) == 0 {
		return
	}
	first := k.heap[0].when
	if !k.armed.IsZero() && !first.Before(k.armed) {
		return
	}
	k.armed = first
	k.value.Value = unix.NsecToTimespec(max(first.Sub(now), 1).Nanoseconds())
	// It cannot fail: the descriptor and the time are valid.
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, k.fd, 0, uintptr(unsafe.Pointer(&k.value)), 0, 0, 0)
}

// timerHeap has the timers in the order in which they end.
type timerHeap []*Timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].when.Before(h[j].when) }

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

// Push adds a timer at the end; for package heap.
func (h *timerHeap) Push(x any) {
	t := x.(*Timer) //nolint:forcetypeassert // It has no others.
	*h = append(*h, t)
	t.place = len(*h)
}

// Pop takes the timer at the end; for package heap.
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h, t.place = old[:len(old)-1], 0
	return t
}
