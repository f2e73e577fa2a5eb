package plugin

import (
	"errors"
	"maps"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/pods"
)

const (
	// mostRetry is the longest pause between two attempts for a pod: each pause is twice the one before.
	mostRetry = time.Minute
	// refusedRetry is the pause after a refusal that stays one until an administrator changes something, as a role of the API server.
	refusedRetry = time.Hour
)

// attempt is what is tried for one pod: when it may be tried again, and what was logged of it.
type attempt struct {
	next   time.Time
	pause  time.Duration
	logged string
	seen   bool // since the last call of forget
}

// attempts have a name for each pod and what is tried for it. One goroutine uses them.
type attempts map[string]*attempt

// of is the attempt of that name, a new one if there is none. It is kept by the next forget.
func (a attempts) of(name string) *attempt {
	x := a[name]
	if x == nil {
		x = &attempt{}
		a[name] = x
	}
	x.seen = true
	return x
}

// forget removes those that were not used since the last time: their pods or leases are not there any more.
func (a attempts) forget() {
	maps.DeleteFunc(a, func(_ string, x *attempt) bool {
		unused := !x.seen
		x.seen = false
		return unused
	})
}

// after is how long it has to wait; 0: it may be tried.
func (x *attempt) after(now time.Time) time.Duration { return max(0, x.next.Sub(now)) }

// tried records an attempt, its error too, and reports whether that is new in the log. Success counts as well: what does not last is not
// done each second.
func (x *attempt) tried(now time.Time, err error) (log bool) {
	x.pause = min(max(retry, 2*x.pause), mostRetry)
	x.next = now.Add(x.pause)
	if refused(err) {
		x.next = now.Add(refusedRetry)
	}
	text := "done"
	if err != nil {
		text = err.Error()
	}
	log = x.logged != text
	x.logged = text
	return log
}

// due makes an attempt unless it has to wait, and returns after which time it is to be made again; 0: it has succeeded. log is called with
// an error that is new.
func (x *attempt) due(now time.Time, do func() error, log func(error)) (wait time.Duration) {
	if after := x.after(now); after > 0 {
		return after
	}
	err := do()
	if err == nil {
		return 0
	}
	if x.tried(now, err) {
		log(err)
	}
	return x.after(now)
}

// refused reports whether an error stays until something else is changed.
func refused(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return pods.Refused(err) || ok && e.Kind == api.KindDenied
}

// sooner is the shorter one of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
