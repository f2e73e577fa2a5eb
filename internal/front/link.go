package front

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/passed"
)

// link is one connection of a caller with its pair to the daemon. Either end takes the other with it, but never in the middle of an
// answer that the daemon has sent whole.
type link struct {
	*passed.Conn // of the caller
	uid          int
	daemon       *net.UnixConn
	answers      *bufio.Reader // of daemon

	here  chan struct{} // the first bytes of an answer have arrived
	read  chan bool     // an answer was read; false: the link ends
	ended chan struct{} // closed when the daemon's end is
	left  chan struct{} // closed when the server has closed the connection of the caller

	mu   sync.Mutex // guards what follows
	busy bool       // a request of the caller runs
	over bool       // there is no other request
}

func newLink(client *passed.Conn, daemon *net.UnixConn, uid int) *link {
	l := &link{
		Conn: client, uid: uid, daemon: daemon, answers: bufio.NewReader(daemon),
		here: make(chan struct{}), read: make(chan bool), ended: make(chan struct{}), left: make(chan struct{}),
	}
	go l.watch() // ends with the daemon's end of the pair
	return l
}

// watch waits for answers, and for the end of the pair, which is then also that of the caller.
func (l *link) watch() {
	defer l.finish()
	defer close(l.ended)
	for {
		if _, err := l.answers.Peek(1); err != nil {
			return
		}
		l.mu.Lock()
		expected := l.busy
		l.mu.Unlock()
		if !expected {
			return // Nothing was requested.
		}
		select {
		case l.here <- struct{}{}:
		case <-l.left:
			return
		}
		if !<-l.read {
			return
		}
	}
}

// finish ends the link: at once if no request runs, else after its answer.
func (l *link) finish() {
	_ = l.daemon.Close() // It is not used any more.
	l.mu.Lock()
	l.over = true
	busy := l.busy
	l.mu.Unlock()
	if !busy {
		_ = l.Conn.Close() // The server closes it too.
	}
}

// checkAgain is how often a caller who sends nothing any more is checked: the kernel reports no event when they also read nothing.
const checkAgain = time.Second

// awaitClosed waits until the caller reads nothing any more; false: there is an answer before. One who has closed only their end for
// sending waits for the answer.
func (l *link) awaitClosed(answered <-chan struct{}) bool {
	again := time.NewTicker(checkAgain)
	defer again.Stop()
	for l.reads() {
		select {
		case <-again.C:
		case <-answered:
			return false
		}
	}
	return true
}

// reads reports whether the caller may read an answer.
func (l *link) reads() bool {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		_, sent = unix.SendmsgN(int(fd), nil, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) // It sends nothing.
	})
	return err == nil && sent == nil
}

// state is what the server reports. After the answer to the last request the connection ends.
func (l *link) state(s http.ConnState) {
	switch s {
	case http.StateActive, http.StateIdle:
		l.mu.Lock()
		l.busy = s == http.StateActive
		over := l.over && !l.busy
		l.mu.Unlock()
		if over {
			_ = l.Conn.Close() // The server closes it too.
		}
	case http.StateClosed:
		_ = l.daemon.Close() // watch ends.
		close(l.left)
	case http.StateNew, http.StateHijacked:
	}
}
