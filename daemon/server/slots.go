package server

import (
	"context"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
)

// A request computes while it has a slot, and the user who has used the least time lately gets the next one. So a user of few
// requests does not wait for those of other users, however many they are. Between two slots of users of many requests there
// are pauses, in which the processor is free for others. Root needs no slot. Other administrators get theirs before all members,
// also in a pause: what ends a flood is a command of theirs.

// work is what a slot is for: each kind has its own, so that a run never waits for an answer that is computed.
type work int

const (
	arriving    work = iota // a request before it waits for anything else than the processor
	longBodies              // decoding a body beyond ownBody: that takes several times its memory
	reading                 // a request that reads, until its answer is computed
	listing                 // the same, from files of the daemon
	readingBack             // the same, from the kernel and the driver
	passing                 // a connection on its way to the front
	kindsOfWork
)

// slotsAtOnce is how many slots of a kind run at a time. One that reads may wait for something.
var slotsAtOnce = [kindsOfWork]int{arriving: 1, longBodies: 1, reading: 2, listing: 1, readingBack: 2, passing: 4}

const (
	leastCount = 100 * time.Microsecond // a slot counts as this at least
	// A connection on its way to the front counts as this: the rest is how long the other process takes.
	passingCount = 500 * time.Microsecond
	littleTime   = 50 * time.Millisecond  // after less than this, used lately, there is no pause
	mostTime     = 200 * time.Millisecond // more is not counted, so that a user is not behind others for long
	timeHalves   = 5 * time.Second        // what was used counts half after this time
	pauseFactor  = 3                      // a pause is so many times as long as the slots before it, and shorter if fewer users wait
	mostPause    = 50 * time.Millisecond  // a slot may have waited for something else than the processor
)

// slots gives each request its slot. The zero value works.
type slots struct {
	mu       locks.Mutex[locks.Leaf] // guards what follows
	users    map[int]*timeOfUser
	kinds    [kindsOfWork]slotsOfKind
	pausing  bool      // one for all kinds: they share the processor
	pauseEnd time.Time // later, if slots end in the pause
	pruned   time.Time

	processor func() time.Duration // time of it that this process has used; nil: as the kernel says
}

// timeOfUser is how long a user had slots lately.
type timeOfUser struct {
	used time.Duration
	at   time.Time
}

type slotsOfKind struct {
	running int
	waiting []*slotsOfUser // each user once; the one who had a slot is the last
}

type slotsOfUser struct {
	uid     int
	admin   bool    // as the latest request of the user says
	waiting []*slot // in the order of their arrival
}

// slot is the right to compute.
type slot struct {
	t     *slots
	uid   int
	admin bool
	kind  work
	ready chan struct{}
	began time.Time
	spent time.Duration // of the processor when it began
	ended bool
}

// begin waits for a slot. end ends it.
func (t *slots) begin(ctx context.Context, kind work, c *Caller) (*slot, error) {
	n := &slot{t: t, uid: c.UID, admin: c.Admin, kind: kind}
	if n.uid == 0 {
		return n, nil
	}
	n.ready = make(chan struct{})
	t.mu.Lock()
	t.kinds[kind].append(n)
	t.nextLocked(kind)
	t.mu.Unlock()
	select {
	case <-n.ready:
		return n, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	waited := t.kinds[kind].remove(n)
	t.mu.Unlock()
	if !waited {
		n.end() // It came at the same time.
	}
	return nil, &api.Error{Kind: api.KindUnavailable, Message: "too many requests run at a time, and this one was canceled"}
}

// end ends it, once.
func (n *slot) end() {
	if n == nil || n.uid == 0 || n.ended {
		return
	}
	n.ended = true
	t, k := n.t, &n.t.kinds[n.kind]
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	duration := n.count(now)
	u := t.userLocked(n.uid, now)
	u.used = min(u.used+duration, mostTime)
	k.running--
	if pause := duration * time.Duration(min(pauseFactor, t.othersLocked(n.uid))); u.used > littleTime && pause > 0 {
		t.pauseLocked(now, pause)
	}
	t.nextLocked(n.kind)
}

// count is what a slot counts as. While a host is busy it lasts much longer than its work, and its user is no heavy one for that.
func (n *slot) count(now time.Time) time.Duration {
	lasted := now.Sub(n.began)
	switch n.kind {
	case passing:
		return passingCount
	case arriving, longBodies: // They wait for nothing but the processor.
		lasted = min(lasted, n.t.processorTime()-n.spent)
	case reading, listing, readingBack, kindsOfWork:
	}
	return max(lasted, leastCount)
}

// processorTime is what all of this process has used. Slots of two users at the same time count for both.
func (t *slots) processorTime() time.Duration {
	if t.processor != nil {
		return t.processor()
	}
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used); err != nil {
		return time.Duration(time.Now().UnixNano()) // no less than it is
	}
	return time.Duration(used.Nano())
}

// pauseLocked makes the pause longer, or starts one.
func (t *slots) pauseLocked(now time.Time, pause time.Duration) {
	from := now
	if t.pausing && t.pauseEnd.After(now) {
		from = t.pauseEnd
	}
	if t.pauseEnd = from.Add(pause); t.pauseEnd.Sub(now) > mostPause {
		t.pauseEnd = now.Add(mostPause)
	}
	if !t.pausing {
		t.pausing = true
		time.AfterFunc(t.pauseEnd.Sub(now), t.endPause)
	}
}

// endPause lets users of many requests have slots again, when the pause has not become longer.
func (t *slots) endPause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if left := time.Until(t.pauseEnd); left > 0 {
		time.AfterFunc(left, t.endPause)
		return
	}
	t.pausing = false
	for kind := range kindsOfWork {
		t.nextLocked(kind)
	}
}

// nextLocked gives slots to requests that wait. In a pause only users of little time get one.
func (t *slots) nextLocked(kind work) {
	k, now := &t.kinds[kind], time.Now()
	for len(k.waiting) > 0 && k.running < slotsAtOnce[kind] {
		var next *slot
		least := mostTime + 1
		for _, w := range k.waiting {
			used := t.userLocked(w.uid, now).used
			if w.admin {
				used -= mostTime + 1 // Less than each member, and the least of several administrators is still the first.
			}
			if used < least {
				next, least = w.waiting[0], used
			}
		}
		if t.pausing && least > littleTime {
			return
		}
		k.remove(next)
		k.running++
		next.began, next.spent = now, t.processorTime()
		close(next.ready)
	}
}

// append adds a request that waits.
func (k *slotsOfKind) append(n *slot) {
	if i := k.index(n.uid); i >= 0 {
		k.waiting[i].admin = n.admin
		k.waiting[i].waiting = append(k.waiting[i].waiting, n)
		return
	}
	k.waiting = append(k.waiting, &slotsOfUser{uid: n.uid, admin: n.admin, waiting: []*slot{n}})
}

// remove removes a request, and reports whether it waited. Its user is the last one now.
func (k *slotsOfKind) remove(n *slot) bool {
	i := k.index(n.uid)
	if i < 0 {
		return false
	}
	u := k.waiting[i]
	j := slices.Index(u.waiting, n)
	if j < 0 {
		return false
	}
	u.waiting = slices.Delete(u.waiting, j, j+1)
	if k.waiting = slices.Delete(k.waiting, i, i+1); len(u.waiting) > 0 {
		k.waiting = append(k.waiting, u)
	}
	return true
}

func (k *slotsOfKind) index(uid int) int {
	return slices.IndexFunc(k.waiting, func(u *slotsOfUser) bool { return u.uid == uid })
}

// othersLocked counts the users who wait besides one, each once for each kind.
func (t *slots) othersLocked(uid int) (n int) {
	for kind := range t.kinds {
		k := &t.kinds[kind]
		if n += len(k.waiting); k.index(uid) >= 0 {
			n--
		}
	}
	return n
}

// userLocked returns the time of a user, and forgets users who have used next to nothing.
func (t *slots) userLocked(uid int, now time.Time) *timeOfUser {
	if now.Sub(t.pruned) > timeHalves {
		t.pruned = now
		for uid, u := range t.users {
			if u.forget(now); u.used < leastCount {
				delete(t.users, uid)
			}
		}
	}
	u := t.users[uid]
	if u == nil {
		if t.users == nil {
			t.users = map[int]*timeOfUser{}
		}
		u = &timeOfUser{at: now}
		t.users[uid] = u
	}
	u.forget(now)
	return u
}

// forget lets the time that was used count less, the longer ago it was.
func (u *timeOfUser) forget(now time.Time) {
	u.used = time.Duration(float64(u.used) * math.Exp2(-float64(now.Sub(u.at))/float64(timeHalves)))
	u.at = now
}
