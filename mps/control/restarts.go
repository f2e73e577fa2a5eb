package control

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpushare/gpushare/mps"
)

const (
	firstDelay  = 250 * time.Millisecond // before the start after the first failure; doubled after each further one
	maxDelay    = 5 * time.Minute
	maxFailures = 6           // in a row: the daemon counts as failed, and is started again only after maxDelay
	stableAfter = time.Minute // a daemon that ran for so long has not failed to start
	jitter      = 0.2         // of a delay, more or less: the daemons of a node that failed together do not start together
)

// restarts are the failures of one control daemon in a row, and when it is started again.
type restarts struct {
	failures int
	reason   string    // of the last failure
	next     time.Time // no start before it
	running  bool      // it was started since the last failure
	began    time.Time // when it was started
	starts   int       // since gpushared started, also those of before the failures
}

// count is how often a daemon was started again.
func (r *restarts) count() int { return max(r.starts-1, 0) }

// started records that a control daemon runs.
func (r *restarts) started(now time.Time) {
	r.running, r.began = true, now
	r.starts++
}

// forgetOld forgets the failures of a daemon that has run long enough.
func (r *restarts) forgetOld(now time.Time) {
	if r.running && now.Sub(r.began) >= stableAfter {
		*r = restarts{running: true, began: r.began, starts: r.starts}
	}
}

// forgive forgets the failures of a device where MPS is no longer desired.
func (s *Supervisor) forgive(id mps.Device) {
	w := s.gpuState(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restarts = restarts{}
	s.watch.checkAt(id, time.Time{})
}

// failed records that the daemon has ended, or that it could not be started.
func (r *restarts) failed(now time.Time, reason string) {
	r.forgetOld(now)
	r.failures, r.reason, r.running = r.failures+1, reason, false
	r.next = now.Add(time.Duration(float64(delay(r.failures)) * (1 + jitter*(2*rand.Float64()-1))))
}

// delay is the time from a failure to the next start, without the jitter.
func delay(failures int) time.Duration {
	if failures >= maxFailures {
		return maxDelay
	}
	return firstDelay << max(failures-1, 0)
}

// phase is the phase of a daemon that is desired and does not run, with the reason.
func (r *restarts) phase(ended string) (mps.Phase, string) {
	if r.failures == 0 {
		return mps.Restarting, ended
	}
	if r.failures < maxFailures {
		return mps.Restarting, r.reason
	}
	return mps.Failed, fmt.Sprintf("%s (%d failures in a row)", r.reason, r.failures)
}
