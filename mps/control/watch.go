package control

import (
	"context"
	"sync"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/mps"
)

// retryGreeting is the time from a missed greeting to the next check.
const retryGreeting = time.Second

// maxCheckInterval bounds the sleep of Watch when no check is due.
const maxCheckInterval = time.Hour

// watch is what Watch waits for.
type watch struct {
	mu     locks.Mutex[locks.AdapterLeaf] // guards what follows
	wake   loop.Wake                      // of Watch; the zero value before its first pass
	checks map[mps.Device]time.Time       // when a control daemon is to be checked again
	begun  []int                          // control daemons that were found since the last pass of Watch
	runs   map[mps.Device]*procfs.Pidfd
	ended  uint64 // control daemons that have ended and are not in runs any more
}

// Watch calls check when a control daemon that was observed has ended, and when one that does not answer or does not run is to
// be observed again. It returns when ctx has ended. check must not block.
func (s *Supervisor) Watch(ctx context.Context, check func()) {
	var daemons sync.WaitGroup
	defer daemons.Wait()
	defer s.watch.dropAll()
	for {
		wait, begun, wake := s.watch.take(s.Now())
		for _, pid := range begun {
			daemons.Go(func() {
				if awaitEnd(ctx, pid) {
					check()
				}
			})
		}
		if wait <= 0 {
			check()
			continue
		}
		if _, ok := wake.Sleep(ctx, wait); !ok {
			return
		}
	}
}

// take returns the time until the next check is due, not positive when one is due now, and the daemons to wait for. A check that
// is due is taken from the list: the observation adds it again if it must.
func (w *watch) take(now time.Time) (wait time.Duration, begun []int, wake loop.Wake) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wake == (loop.Wake{}) {
		w.wake = loop.NewWake()
	}
	begun, w.begun = w.begun, nil
	wait = maxCheckInterval
	for id, at := range w.checks {
		if left := at.Sub(now); left <= 0 {
			delete(w.checks, id)
			wait = 0
		} else {
			wait = min(wait, left)
		}
	}
	return wait, begun, w.wake
}

// checkAt plans the next check of a device, if none is planned before; zero: none.
func (w *watch) checkAt(id mps.Device, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at.IsZero() {
		delete(w.checks, id)
		return
	}
	if w.checks == nil {
		w.checks = map[mps.Device]time.Time{}
	}
	if earlier, planned := w.checks[id]; planned && earlier.Before(at) {
		return // Its observation plans this one again, if it must.
	}
	w.checks[id] = at
	w.wake.Set()
}

// follow makes Watch wait for the end of a control daemon, and Ended know of it.
func (w *watch) follow(id mps.Device, pid int, start uint64) {
	p, err := procfs.OpenPidfd(pid, start)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropLocked(id)
	if err == nil {
		if w.runs == nil {
			w.runs = map[mps.Device]*procfs.Pidfd{}
		}
		w.runs[id] = p
	}
	w.begun = append(w.begun, pid)
	w.wake.Set()
}

// drop forgets the control daemon of a device: it was observed that none runs.
func (w *watch) drop(id mps.Device) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropLocked(id)
}

func (w *watch) dropAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.runs {
		w.dropLocked(id)
	}
}

func (w *watch) dropLocked(id mps.Device) {
	if p := w.runs[id]; p != nil {
		if p.Ended() {
			w.ended++
		}
		_ = p.Close() // There is nothing to write.
		delete(w.runs, id)
	}
}

// Ended counts the control daemons that were observed to run and have ended. It reads no file.
func (s *Supervisor) Ended() uint64 {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	n := s.watch.ended
	for _, p := range s.watch.runs {
		if p.Ended() {
			n++
		}
	}
	return n
}

// awaitEnd waits for the end of a process, and reports whether it has ended before ctx.
func awaitEnd(ctx context.Context, pid int) bool {
	start, err := procfs.Start(pid)
	if err != nil {
		return true
	}
	p, err := procfs.OpenPidfd(pid, start)
	if err != nil {
		return true
	}
	defer p.Close()
	return p.Wait(ctx) == nil
}
