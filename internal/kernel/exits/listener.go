package exits

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Listener knows how the followed processes ended. A nil Listener follows nothing.
type Listener struct {
	socket *os.File

	mu       sync.Mutex
	followed map[int]*process // by pid
}

// process is one followed process.
type process struct {
	start  uint64
	pidfd  *procfs.Pidfd
	status unix.WaitStatus // of the last end of its first thread
	at     time.Time       // zero: none
	ended  chan struct{}   // closed when that was the end of the process
}

// Listen subscribes to the ends of processes. It fails without root, in another network namespace than the first, and with a
// kernel that lacks the process connector.
func Listen() (*Listener, error) {
	fd, err := subscribe()
	if err != nil {
		return nil, fmt.Errorf("cannot listen to the ends of processes: %w", err)
	}
	return &Listener{socket: os.NewFile(uintptr(fd), "process connector"), followed: map[int]*process{}}, nil
}

// Close ends the listener. Run does so too.
func (l *Listener) Close() error {
	if l == nil {
		return nil
	}
	return l.socket.Close()
}

// Run receives until ctx ends. Then, or when it fails, the listener is closed and knows no new ends.
func (l *Listener) Run(ctx context.Context) error {
	if l == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = l.socket.Close() }) // Only the read below sees its error.
	defer stop()
	buf := make([]byte, 4096)
	reported := map[int]bool{}
	for {
		n, err := l.socket.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS): // Ends were lost: their processes have no result.
			continue
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("cannot listen to the ends of processes: %w", errors.Join(err, l.socket.Close()))
		}
		l.put(buf[:n], reported)
		l.conclude(buf, reported)
	}
}

// put notes the end of a first thread, and adds its process to those that are reported.
func (l *Listener) put(b []byte, reported map[int]bool) {
	pid, status, ok := parse(b)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.followed[pid]
	if p == nil {
		return
	}
	select {
	case <-p.ended:
		return // It is a later process with the same pid.
	default:
	}
	p.status, p.at = status, time.Now()
	reported[pid] = true
}

// mostQueued is more messages than the buffer of the socket can have.
const mostQueued = 1 << 13

// conclude decides which of the reported processes have ended. The first thread also ends when another one calls execve, as in a Go
// program, and it may end before the others: then another end follows. The kernel reports the end of a process before its pidfd shows
// it, so that one is in the queue by the time that the pidfd shows it, and is the last one there.
func (l *Listener) conclude(buf []byte, reported map[int]bool) {
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return // It is closed, and nothing more is known.
	}
	for len(reported) > 0 {
		over := l.over(reported)
		clear(reported)
		for range mostQueued {
			var n int
			var failed error
			err := raw.Read(func(fd uintptr) bool { n, failed = unix.Read(int(fd), buf); return true })
			if errors.Is(failed, unix.EINTR) || errors.Is(failed, unix.ENOBUFS) {
				continue
			}
			if err != nil || failed != nil {
				break // The queue is empty, or the socket is closed.
			}
			l.put(buf[:n], reported)
		}
		for _, p := range over {
			close(p.ended)
		}
	}
}

// over are the reported processes that have ended and are not known to.
func (l *Listener) over(reported map[int]bool) (list []*process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pid := range reported {
		p := l.followed[pid]
		if p == nil {
			continue
		}
		select {
		case <-p.ended:
		default:
			if p.pidfd.Ended() {
				list = append(list, p)
			}
		}
	}
	return list
}

// Follow keeps the result of a process until Forget. start is in clock ticks since the boot. A process that has ended is not
// followed.
func (l *Listener) Follow(pid int, start uint64) {
	if l == nil || pid <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.followed[pid]
	if old != nil && old.start == start {
		return
	}
	pidfd, err := procfs.OpenPidfd(pid, start)
	if err != nil {
		return // Its result is unknown.
	}
	if old != nil {
		_ = old.pidfd.Close() // It is only read.
	}
	l.followed[pid] = &process{start: start, pidfd: pidfd, ended: make(chan struct{})}
	if err := l.filterLocked(); err != nil {
		// Then its end is dropped.
		_ = pidfd.Close() // It is only read.
		delete(l.followed, pid)
	}
}

// Forget ends Follow.
func (l *Listener) Forget(pid int, start uint64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.followed[pid]; p != nil && p.start == start {
		_ = p.pidfd.Close() // It is only read.
		delete(l.followed, pid)
		_ = l.filterLocked() // The filter before lets more through than is needed.
	}
}

// filterLocked makes the kernel drop the ends of all other processes. l.mu is held.
func (l *Listener) filterLocked() error {
	pids := slices.Collect(maps.Keys(l.followed))
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return err
	}
	attach := func(f *unix.SockFprog) (err error) {
		if e := raw.Control(
			func(fd uintptr) { err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, f) },
		); e != nil {
			return e
		}
		return err
	}
	if len(pids) <= maxFiltered {
		err = attach(filter(pids))
	}
	if len(pids) > maxFiltered || errors.Is(err, unix.ENOMEM) { // net.core.optmem_max limits a filter.
		err = attach(filter(nil))
	}
	return err
}

// Result returns how a followed process that has ended did so, and when. ok is false if that is not known. The kernel empties
// the cgroup of a process a moment before it reports the end, so it waits until ctx ends.
func (l *Listener) Result(ctx context.Context, pid int, start uint64) (status unix.WaitStatus, at time.Time, ok bool) {
	if l == nil {
		return 0, time.Time{}, false
	}
	l.mu.Lock()
	p := l.followed[pid]
	l.mu.Unlock()
	if p == nil || p.start != start {
		return 0, time.Time{}, false
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// If the first thread ended before the others, its end was not the end of the process, and there is no later one.
	return p.status, p.at, !p.at.IsZero() && p.pidfd.Ended()
}

// The messages of the process connector: struct nlmsghdr, struct cn_msg and struct proc_event (linux/netlink.h,
// linux/connector.h, linux/cn_proc.h).
const (
	netlinkHeader  = 16
	connectorIndex = 1          // CN_IDX_PROC
	connectorValue = 1          // CN_VAL_PROC
	listen         = 1          // PROC_CN_MCAST_LISTEN
	exitEvent      = 0x80000000 // PROC_EVENT_EXIT

	whatAt   = netlinkHeader + 20 // after struct cn_msg
	threadAt = whatAt + 16        // what, cpu and the time come before the event
	pidAt    = threadAt + 4
	statusAt = threadAt + 8
	eventEnd = threadAt + 16
)

// parse returns the process whose first thread ended. Its exit code is that of the process, unless it ends alone before the
// others.
func parse(b []byte) (pid int, status unix.WaitStatus, ok bool) {
	if len(b) < eventEnd {
		return 0, 0, false
	}
	at := func(i int) uint32 { return binary.NativeEndian.Uint32(b[i:]) }
	if at(netlinkHeader) != connectorIndex || at(whatAt) != exitEvent || at(threadAt) != at(pidAt) {
		return 0, 0, false
	}
	return int(at(pidAt)), unix.WaitStatus(at(statusAt)), true
}

// subscribe opens the socket.
func subscribe() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_CONNECTOR)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	if err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter([]int{})); err != nil {
		return -1, fmt.Errorf("attach a filter: %w", err)
	}
	// Beyond the limit of the system, because a burst of ends must not overflow it.
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<20); err != nil {
		return -1, fmt.Errorf("set the size of the buffer: %w", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorIndex}); err != nil {
		return -1, err
	}
	return fd, unix.Sendto(fd, request(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// request is the message that starts the reports.
func request() []byte {
	b := make([]byte, netlinkHeader+24)
	put := func(i int, v uint32) { binary.NativeEndian.PutUint32(b[i:], v) }
	put(0, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.NLMSG_DONE)
	put(12, uint32(os.Getpid()))
	put(netlinkHeader, connectorIndex)
	put(netlinkHeader+4, connectorValue)
	binary.NativeEndian.PutUint16(b[netlinkHeader+16:], 4) // the length of what follows
	put(netlinkHeader+20, listen)
	return b
}

// maxFiltered is the number of pids from which no filter compares them: a filter has at most 4096 instructions (BPF_MAXINSNS).
const maxFiltered = 2048

// filter accepts the end of these processes, not that of one of their other threads; nil: of all processes. Words are loaded in
// network byte order, so what is compared is in that order too.
func filter(pids []int) *unix.SockFprog {
	const all = 0xffffffff
	order := func(n uint32) uint32 {
		var word [4]byte
		binary.NativeEndian.PutUint32(word[:], n)
		return binary.BigEndian.Uint32(word[:])
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	accept, drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: all}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	code := []unix.SockFilter{
		load(whatAt),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: order(exitEvent), Jt: 1},
		drop,
		load(threadAt),
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		load(pidAt),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X, Jt: 1},
		drop,
	}
	// A jump reaches 255 instructions, so each block of comparisons has its own end.
	const block = 200
	for some := range slices.Chunk(pids, block) {
		for i, pid := range some {
			code = append(
				code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: order(uint32(pid)), Jt: uint8(len(some) - i)},
			)
		}
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: 1}, accept)
	}
	if pids == nil {
		code = append(code, accept)
	} else {
		code = append(code, drop)
	}
	return &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
}
