package procfs

import (
	"sync"
	"time"
)

// lockWait is how long a reading may wait for a lock of another process. Without one it takes microseconds.
const lockWait = 100 * time.Millisecond

// The bounds of readings that run or have not returned: of the processes of one user, who can make them wait, and of all.
const (
	mostOfOwner = 4
	mostLost    = 64
)

// noOwner is the user of a process that has exited.
const noOwner = ^uint32(0)

// giveUps are the readings that did not return in time. Each keeps a thread until it does.
type giveUps struct {
	mu     sync.Mutex     // guards what follows
	pids   map[int]bool   // with a reading that has not returned
	owners map[uint32]int // how many of them each user has
}

var waiting giveUps

// Within runs a reading of a process that may wait for one of its locks, as those of its memory and of its execve, which a user can
// make it hold for as long as they like. false: it did not return in time, and what it writes must not be used. A process whose
// last reading has not returned is not read again, nor are others of a user who has several such processes.
func Within(pid int, read func()) bool {
	owner, err := UID(pid)
	if err != nil {
		owner = noOwner
	}
	return waiting.within(pid, owner, read)
}

func (g *giveUps) within(pid int, owner uint32, read func()) bool {
	if !g.enter(pid, owner) {
		return false
	}
	done := make(chan struct{})
	go func() { // ends with the reading
		read()
		g.leave(pid, owner)
		close(done)
	}()
	timer := time.NewTimer(lockWait)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func (g *giveUps) enter(pid int, owner uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pids[pid] || g.owners[owner] >= mostOfOwner || len(g.pids) >= mostLost {
		return false
	}
	if g.pids == nil {
		g.pids, g.owners = map[int]bool{}, map[uint32]int{}
	}
	g.pids[pid] = true
	g.owners[owner]++
	return true
}

func (g *giveUps) leave(pid int, owner uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pids, pid)
	if g.owners[owner]--; g.owners[owner] == 0 {
		delete(g.owners, owner)
	}
}
