package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/passed"
	"github.com/gpushare/gpushare/internal/locks"
)

// Limits of connections. Root has none.
const (
	maxConns             = 1024 // of callers with a role
	maxPerUID            = 128
	maxWithoutRole       = 128
	maxPerUIDWithoutRole = 16
	maxSurplus           = 256 // that are closed without a look at whether the listener was closed
)

// cappedListener limits connections: those of one user, and those of all callers without a role together, because one user
// may have thousands of uids in a user namespace. If callers with a role have too many together, the one with the most
// loses one for each connection of another.
type cappedListener struct {
	net.Listener
	socket  *os.File         // of the listener: package net does not accept without several system calls more
	hasRole func(*Peer) bool // has some role

	mu          locks.Mutex[locks.Leaf] // protects the fields below
	total       int                     // connections of callers with a role
	withoutRole int
	byUID       map[int][]*cappedConn // oldest first
}

// NewCappedListener limits the connections of a listener. hasRole reports whether a peer has a role.
func NewCappedListener(l net.Listener, hasRole func(*Peer) bool) (*cappedListener, error) {
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, fmt.Errorf("cannot serve on a %T", l)
	}
	socket, err := u.File()
	if err != nil {
		return nil, fmt.Errorf("cannot access the socket: %w", err)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot access the socket: %w", err)
	}
	// Where the kernel cannot, connections are read and closed with care.
	if err := raw.Control(func(fd uintptr) { passed.Refuse(int(fd)) }); err != nil {
		return nil, fmt.Errorf("cannot access the socket: %w", err)
	}
	return &cappedListener{Listener: l, socket: socket, hasRole: hasRole, byUID: map[int][]*cappedConn{}}, nil
}

// Close ends Accept.
func (l *cappedListener) Close() error { return errors.Join(l.Listener.Close(), l.socket.Close()) }

// Accept returns the next connection that is within the limits.
func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.next()
		if err != nil {
			return nil, err
		}
		if conn == nil {
			continue // All were surplus. A closed listener ends this here.
		}
		p, err := peerOf(conn.UnixConn)
		if err != nil {
			conn.Close()
			continue
		}
		c := &cappedConn{Conn: conn, l: l, peer: p, hasRole: l.hasRole(p)}
		c.end.Store(c.UnixConn)
		ok, instead := l.admit(c)
		if instead != nil {
			instead.shutDown()
		}
		if !ok {
			conn.Close()
			continue
		}
		return c, nil
	}
}

// next accepts the next connection of a user who may have one more, and closes those before it. In a flood the kernel's queue
// has thousands of them, and each takes three system calls. After maxSurplus it returns nil.
func (l *cappedListener) next() (*passed.Conn, error) {
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot access the socket: %w", err)
	}
	var conn *passed.Conn
	var failed error
	err = raw.Read(func(listening uintptr) bool {
		fd := -1
		for surplus := 0; ; surplus++ {
			if surplus == maxSurplus {
				return true
			}
			fd, _, failed = unix.Accept4(int(listening), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			switch {
			case errors.Is(failed, unix.EINTR), errors.Is(failed, unix.ECONNABORTED):
				continue
			case errors.Is(failed, unix.EAGAIN):
				return false // The runtime calls again when there is one.
			case failed != nil:
				failed = &net.OpError{
					Op:  "accept",
					Net: "unix",
					Err: os.NewSyscallError("accept4", failed),
				} // The server retries what is temporary.
				return true
			}
			if cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && !l.isFull(int(cred.Uid)) &&
				!hasHungUp(fd) {
				break
			}
			passed.Close(fd)
		}
		conn, failed = passed.Take(fd)
		return true
	})
	return conn, cmp.Or(err, failed)
}

// isFull reports whether a connection of a user would not be admitted, as far as that is known without its groups.
func (l *cappedListener) isFull(uid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.byUID[uid]
	if uid == 0 || len(all) == 0 {
		return false
	}
	return len(all) >= maxPerUID || all[0].hasRole && l.total >= maxConns && l.replacedLocked(uid) == nil
}

// admit counts a connection unless that is one too many. The caller ends the one that it replaces.
func (l *cappedListener) admit(c *cappedConn) (ok bool, instead *cappedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	uid, all, most, each := c.peer.UID, &l.total, maxConns, maxPerUID
	if !c.hasRole {
		all, most, each = &l.withoutRole, maxWithoutRole, maxPerUIDWithoutRole
	}
	if uid != 0 && len(l.byUID[uid]) >= each {
		return false, nil
	}
	if uid != 0 && *all >= most {
		if instead = l.replacedLocked(uid); !c.hasRole || instead == nil {
			return false, nil
		}
		l.removeLocked(instead)
	}
	*all++
	l.byUID[uid] = append(l.byUID[uid], c)
	return true, instead
}

// replacedLocked returns the connection that is closed for one more of a user with a role; nil: this user has as many as others.
func (l *cappedListener) replacedLocked(uid int) *cappedConn {
	if c := l.largestLocked(); c != nil && len(l.byUID[c.peer.UID]) > len(l.byUID[uid])+1 {
		return c
	}
	return nil
}

// largestLocked returns the newest connection of the user with a role who has the most; nil if there is none.
func (l *cappedListener) largestLocked() (c *cappedConn) {
	most := 0
	for uid, all := range l.byUID {
		if last := all[len(all)-1]; uid != 0 && last.hasRole && (len(all) > most || len(all) == most && uid < c.peer.UID) {
			most, c = len(all), last
		}
	}
	return c
}

// forget removes a connection from the counts, once.
func (l *cappedListener) forget(c *cappedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(c)
}

func (l *cappedListener) removeLocked(c *cappedConn) {
	uid := c.peer.UID
	i := slices.Index(l.byUID[uid], c)
	if i < 0 {
		return // Another connection replaced it.
	}
	if l.byUID[uid] = slices.Delete(l.byUID[uid], i, i+1); len(l.byUID[uid]) == 0 {
		delete(l.byUID, uid)
	}
	if c.hasRole {
		l.total--
	} else {
		l.withoutRole--
	}
}

// cappedConn is a connection that is counted.
type cappedConn struct {
	*passed.Conn
	l       *cappedListener
	peer    *Peer // read once: it costs a few system calls
	hasRole bool
	found   sync.Once
	end     atomic.Pointer[net.UnixConn] // what ends it for both sides: itself, or the pair to the front that has it now
}

// Read finds the process of the peer before the first request arrives. That costs several system calls, for which the
// connections of other users do not wait.
func (c *cappedConn) Read(b []byte) (int, error) {
	c.findProcess()
	return c.Conn.Read(b)
}

func (c *cappedConn) findProcess() { c.found.Do(func() { c.peer.findProcess(c.UnixConn) }) }

// shutDown ends the connection for both sides; the server closes it then. Close would wait until the goroutine that reads it now
// runs, and the connections of other users with it.
func (c *cappedConn) shutDown() {
	for {
		end := c.end.Load()
		_ = errors.Join(end.CloseRead(), end.CloseWrite())
		if c.end.Load() == end {
			return
		}
	}
}

// Close closes the connection and removes it from the counts.
func (c *cappedConn) Close() error {
	c.l.forget(c)
	return c.Conn.Close()
}
