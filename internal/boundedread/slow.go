package boundedread

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Timeout is how long the memory of a process and a file of a user may take to be read. Without an attack, or a file server that is
// down, it is microseconds.
const Timeout = time.Second

const (
	// mostOfOwner is how many reads of what one user controls run at once, those included that were given up and have not returned.
	mostOfOwner = 4
	// mostLost is how many reads that were given up may wait at once, of all users. Each of them keeps a thread.
	mostLost = 64
)

// Memory reads the beginning of a file in /proc/PID that the kernel copies from the memory of the process: cmdline, environ. Its
// length is what the process says (PR_SET_MM), a read may wait for a file system behind that memory or for a lock of it, and the
// content may change between two reads. owner is the real user id of the process. cut: there is more.
func Memory(ctx context.Context, pid int, name string, owner uint32, limit int) (b []byte, cut bool, err error) {
	path := "/proc/" + strconv.Itoa(pid) + "/" + name
	return waiting.prefix(ctx, path, 0, owner, limit)
}

// OfUser reads a file in a directory in which a user can write. It does not follow a link at the end of the path, and gives up a file
// system that does not answer. owner is that user. A caller that may do without should not open such a file itself, but in a
// process of that user.
func OfUser(ctx context.Context, path string, owner uint32, limit int) ([]byte, error) {
	b, cut, err := waiting.prefix(ctx, path, unix.O_NOFOLLOW, owner, limit)
	if err != nil {
		return nil, err
	}
	if cut {
		return nil, pathError("read", path, tooLarge(limit))
	}
	return b, nil
}

// waiting is shared, because the threads belong to the process.
var waiting = lostReads{read: prefixOfPath, timeout: Timeout}

// lostReads reads in goroutines that it can give up, because no call ends a read that waits in the kernel.
type lostReads struct {
	read    func(path string, flags, limit int) ([]byte, bool, error)
	timeout time.Duration

	mu     sync.Mutex // guards what follows
	owners map[uint32]*ownerReads
	lost   int
}

// ownerReads are the reads of what one user controls.
type ownerReads struct {
	slots chan struct{} // one for each read that runs
	users int           // callers and goroutines that use it
	lost  int           // reads that were given up and have not returned
}

type result struct {
	b   []byte
	cut bool
	err error
}

func (w *lostReads) prefix(ctx context.Context, path string, flags int, owner uint32, limit int) ([]byte, bool, error) {
	o, err := w.enter(owner)
	if err != nil {
		return nil, false, pathError("read", path, err)
	}
	defer w.leave(owner, o)
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	select {
	case o.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, false, pathError("read", path, ErrNoAnswer)
	}
	r := &givenUp{done: make(chan result, 1)}
	w.mu.Lock()
	o.users++
	w.mu.Unlock()
	go func() { // ends when the file answers: each owner has so many of them
		b, cut, err := w.read(path, flags, limit)
		r.done <- result{b, cut, err}
		w.returned(owner, o, r)
	}()
	select {
	case got := <-r.done:
		return got.b, got.cut, got.err
	case <-ctx.Done():
	}
	w.giveUp(o, r)
	return nil, false, pathError("read", path, fmt.Errorf("%w within %v", ErrNoAnswer, w.timeout))
}

// givenUp is one read that a caller may give up.
type givenUp struct {
	done chan result
	// Both are guarded by lostReads.mu.
	lost, returned bool
}

// enter refuses an owner all of whose reads wait, so that its callers do not wait for the whole timeout each.
func (w *lostReads) enter(owner uint32) (*ownerReads, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.owners[owner]
	if o == nil {
		o = &ownerReads{slots: make(chan struct{}, mostOfOwner)}
	}
	switch {
	case o.lost >= mostOfOwner:
		return nil, fmt.Errorf("%w: %d earlier reads of uid %d still wait", ErrNoAnswer, o.lost, owner)
	case w.lost >= mostLost:
		return nil, fmt.Errorf("%w: %d earlier reads still wait", ErrNoAnswer, w.lost)
	}
	if w.owners == nil {
		w.owners = map[uint32]*ownerReads{}
	}
	w.owners[owner] = o
	o.users++
	return o, nil
}

func (w *lostReads) leave(owner uint32, o *ownerReads) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.users--; o.users == 0 {
		delete(w.owners, owner)
	}
}

func (w *lostReads) giveUp(o *ownerReads, r *givenUp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !r.returned {
		r.lost = true
		o.lost++
		w.lost++
	}
}

// returned is called by the goroutine of a read when it has ended.
func (w *lostReads) returned(owner uint32, o *ownerReads, r *givenUp) {
	w.mu.Lock()
	r.returned = true
	if r.lost {
		o.lost--
		w.lost--
	}
	w.mu.Unlock()
	<-o.slots
	w.leave(owner, o)
}
