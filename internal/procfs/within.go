package procfs

import (
	"sync"
	"time"
)

// lockWait is how long a reading may wait for a lock of another process. Without one it takes microseconds.
const lockWait = 100 * time.Millisecond

// giveUps are the readings that did not return in time. Each keeps a thread until it does.
type giveUps struct {
	mu   sync.Mutex   // guards what follows
	pids map[int]bool // with a reading that has not returned
}

var waiting giveUps

// Within runs a reading of a process that may wait for one of its locks, as those of its memory and of its execve, which a user can
// make it hold for as long as they like. false: it did not return in time, and what it writes must not be used. A process whose
// last reading has not returned is not read again.
func Within(pid int, read func()) bool {
	waiting.mu.Lock()
	if waiting.pids[pid] || len(waiting.pids) >= maxStuck {
		waiting.mu.Unlock()
		return false
	}
	if waiting.pids == nil {
		waiting.pids = map[int]bool{}
	}
	waiting.pids[pid] = true
	waiting.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the reading
		read()
		waiting.mu.Lock()
		delete(waiting.pids, pid)
		waiting.mu.Unlock()
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
