package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/sockdiag"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/mps"
)

// A control daemon serves one connection at a time and waits for it without a deadline: a process that connects and sends nothing
// keeps all others out, commands too. Seen with the control programs of 535.261.03 and 550.163.01.

// silentAfter is the age from which a connection is examined. A handshake takes a millisecond.
const silentAfter = time.Second

// examineEvery is the time until a connection for which the daemon did not wait is examined again.
const examineEvery = 30 * time.Second

// Peer is a connection on which a control daemon waits while it serves no other.
type Peer struct {
	Inode      uint64        // of the daemon's end
	Socket     string        // path of the socket
	UID        int           // that connected; -1: not known
	Processes  []procfs.Stat // that have the other end open
	descriptor int           // of the daemon
	daemon     int           // pid
}

// peers are the connections of one control daemon.
type peers struct {
	mu    locks.Mutex[locks.MPSPeers] // guards what follows
	pid   int                         // of the daemon
	since map[uint64]seen
	// written is what the daemon had written at the last list of its sockets; 0: not known.
	written uint64
	listed  time.Time
}

// unchanged reports whether no connection was made since the last list of the daemon's sockets, all of which were harmless: it writes a
// line for each. The list costs more than this.
func (p *peers) unchanged(st *mps.State, now time.Time) bool {
	written, err := procfs.Written(st.PID)
	if err != nil {
		written = 0
	}
	same := written != 0 && written == p.written && p.pid == st.PID && st.MissedGreetings == 0 && now.Sub(p.listed) < examineEvery
	for _, s := range p.since {
		same = same && !s.harmless.IsZero()
	}
	if !same {
		p.written, p.listed = written, now // Before the list.
	}
	return same
}

// seen is a socket of a control daemon.
type seen struct {
	at       time.Time
	boot     time.Duration // the same since boot
	harmless time.Time     // when the daemon did not wait for it; zero: not known
}

// SilentPeers returns the connections that keep the control daemon of a GPU from serving others: those older than a second from
// which it waits to read. Where the kernel does not tell from which one it waits, a greeting shows whether it serves others.
func (s *Supervisor) SilentPeers(ctx context.Context, id mps.Device) ([]Peer, error) {
	w := s.gpuState(id)
	st := w.last.Load()
	if st == nil || st.PID == 0 {
		return nil, nil
	}
	p := &w.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	l, now := s.layout(id), s.Now()
	if p.unchanged(st, now) {
		return nil, nil
	}
	sockets, err := procfs.Sockets(st.PID)
	if err != nil {
		return nil, err
	}
	suspects := p.update(st.PID, sockets, now)
	if len(suspects) == 0 {
		return nil, nil
	}
	awaited, unknown := procfs.AwaitedSockets(st.PID)
	if unknown == nil {
		waits := func(ino uint64) bool { return slices.Contains(awaited, sockets[ino]) }
		p.clear(suspects, waits, now)
		return p.identify(ctx, l, st.PID, sockets, slices.DeleteFunc(suspects, func(ino uint64) bool { return !waits(ino) }))
	}
	if !w.mu.TryLock() {
		return nil, nil // During a command of gpushare the daemon may serve that one.
	}
	defer w.mu.Unlock()
	err = greet(ctx, l.pipe())
	switch {
	case err == nil:
		p.clear(suspects, func(uint64) bool { return false }, now)
		return nil, nil
	case errors.Is(err, ErrNoDaemon), ctx.Err() != nil:
		return nil, err
	}
	found, err := p.identify(ctx, l, st.PID, sockets, suspects)
	if len(found) > 1 {
		return nil, fmt.Errorf("pid %d serves one of %d connections, and it is not known which: %w", st.PID, len(found), unknown)
	}
	return found, err
}

// awaitTimeout is how long a lease that starts waits for a control daemon that does not greet: longer than it takes to find and
// stop a process that keeps others out.
const awaitTimeout = 10 * time.Second

// Await is Observe, and waits for a control daemon that runs and does not greet.
func (s *Supervisor) Await(ctx context.Context, id mps.Device) *mps.State {
	st := s.Observe(ctx, id)
	if st == nil || st.MissedGreetings == 0 || greetWithin(ctx, s.layout(id).pipe(), awaitTimeout) != nil {
		return st
	}
	return s.observeNow(ctx, id)
}

// update returns the sockets that are suspected, the oldest first.
func (p *peers) update(pid int, sockets map[uint64]int, now time.Time) (suspects []uint64) {
	if p.pid != pid || p.since == nil {
		p.pid, p.since = pid, map[uint64]seen{}
	}
	for ino := range p.since {
		if _, open := sockets[ino]; !open {
			delete(p.since, ino)
		}
	}
	for ino := range sockets {
		known, ok := p.since[ino]
		switch {
		case !ok:
			p.since[ino] = seen{at: now, boot: procfs.BootTime()}
		case now.Sub(known.at) >= silentAfter && (known.harmless.IsZero() || now.Sub(known.harmless) >= examineEvery):
			suspects = append(suspects, ino)
		}
	}
	slices.SortFunc(suspects, func(a, b uint64) int { return p.since[a].at.Compare(p.since[b].at) })
	return suspects
}

// clear records which of the suspects the daemon does not wait for.
func (p *peers) clear(suspects []uint64, waits func(ino uint64) bool, now time.Time) {
	for _, ino := range suspects {
		if s := p.since[ino]; !waits(ino) {
			s.harmless = now
			p.since[ino] = s
		}
	}
}

// identify returns those of the suspects that are connections to the daemon's sockets, with their processes.
func (p *peers) identify(ctx context.Context, l layout, pid int, sockets map[uint64]int, suspects []uint64) ([]Peer, error) {
	if len(suspects) == 0 {
		return nil, nil
	}
	if st, err := procfs.Read(pid); err != nil || st.State == 'T' {
		return nil, err // It is stopped itself.
	}
	connected, err := sockdiag.Connected()
	if err != nil {
		return nil, err
	}
	var found []Peer
	for _, ino := range suspects {
		c := Peer{Inode: ino, UID: -1, descriptor: sockets[ino], daemon: pid}
		other := uint64(0)
		if i := slices.IndexFunc(connected, func(s sockdiag.Socket) bool { return s.Inode == ino }); i >= 0 {
			other, c.Socket = connected[i].Peer, connected[i].Name
		}
		// The connection of a process in another network namespace is not in the list.
		var maker int
		_ = c.with(func(fd int) error { // Without the right to it, the list has to do.
			if cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				c.UID, maker = int(cred.Uid), int(cred.Pid)
			}
			if name, err := unix.Getsockname(fd); err == nil {
				if u, ok := name.(*unix.SockaddrUnix); ok {
					c.Socket = u.Name
				}
			}
			return nil
		})
		if c.Socket != filepath.Join(l.pipe(), "control") && c.Socket != filepath.Join(l.pipe(), "control_privileged") {
			continue // A connection of another kind, as to a server.
		}
		if other != 0 {
			if c.Processes, err = procfs.SocketUsers(ctx, other); err != nil {
				return nil, err
			}
		}
		if len(c.Processes) == 0 {
			c.Processes = p.makerOf(ino, maker, c.UID)
		}
		found = append(found, c)
	}
	return found, nil
}

// makerOf returns the process that made a connection, if it still runs: a process that has its pid now and is younger than the
// connection is another one.
func (p *peers) makerOf(ino uint64, pid, uid int) []procfs.Stat {
	st, err := procfs.Read(pid)
	if err != nil || st.Dead() || time.Duration(st.Start)*time.Second/procfs.Ticks > p.since[ino].boot {
		return nil
	}
	if is, err := procfs.UID(pid); err != nil || int(is) != uid {
		return nil
	}
	return []procfs.Stat{st}
}

// Disconnect ends the connection at the daemon's end, where no process is known that could be stopped instead.
func (c *Peer) Disconnect() error {
	if err := c.with(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) }); err != nil {
		return fmt.Errorf("cannot end a connection to %s: %w", c.Socket, err)
	}
	return nil
}

// with calls use with a duplicate of the daemon's end of the connection.
func (c *Peer) with(use func(fd int) error) error {
	start, err := procfs.Start(c.daemon)
	if err != nil {
		return err
	}
	daemon, err := procfs.OpenPidfd(c.daemon, start)
	if err != nil {
		return err
	}
	defer daemon.Close()
	return daemon.Pass(func(pidfd int) error {
		fd, err := unix.PidfdGetfd(pidfd, c.descriptor, 0)
		if err != nil {
			return os.NewSyscallError("pidfd_getfd", err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		if st.Ino != c.Inode {
			return procfs.ErrNoProcess // The daemon has closed it.
		}
		return use(fd)
	})
}

// Names joins the processes of a connection: "pid 4711 (python), pid 4712 (sh)".
func (c *Peer) Names() string {
	names := make([]string, 0, len(c.Processes))
	for _, p := range c.Processes {
		names = append(names, fmt.Sprintf("pid %d (%s)", p.PID, p.Name))
	}
	return strings.Join(names, ", ")
}
