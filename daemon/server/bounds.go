package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
)

// Bound is how many requests of a kind one user may have at once. Every route has one, because a caller can repeat each
// request, and each takes memory or time from other users. Root has none: an administrator must be able to repair the node.
type Bound struct {
	Kind     string // routes of one kind are counted together; in a refusal: "9 KIND"
	Most     int    // of one user that run at once; 0 is 1
	Together int    // of all users that are computed at once, until the answer; 0: no limit. Users take turns
	Lasts    bool   // it lasts as long as its caller wants: one too many is refused. Other requests wait for their turn
}

// The bounds of the routes. Only a request that reads waits for those of other users: a run and a stop never do.
var (
	Reads     = Bound{Kind: "requests that read", Most: 8, Together: 2}
	Lists     = Bound{Kind: "requests for a list", Most: 1, Together: 1} // An answer takes memory until it is read.
	ReadsBack = Bound{Kind: "requests that read back", Most: 2, Together: 2}
	Events    = Bound{Kind: "readers of events", Most: 8, Lasts: true}
	Outputs   = Bound{Kind: "readers of output", Most: 8, Lasts: true}
	Awaits    = Bound{Kind: "requests that wait for an operation", Most: 8, Lasts: true}
	Starts    = Bound{Kind: "requests that start a lease", Most: 96, Lasts: true}
	Stops     = Bound{Kind: "requests that stop a lease", Most: 16}
	Changes   = Bound{Kind: "requests that change the node", Most: 4}
)

// limiter enforces bounds. The zero value works.
type limiter struct {
	mu    locks.Mutex[locks.Leaf] // guards what follows
	kinds map[string]*kindOfRequest
}

// kindOfRequest has the requests of one kind.
type kindOfRequest struct {
	running int
	users   map[int]*userRequests
	order   []int // the users with requests that wait; the first one is next
}

type userRequests struct {
	running int // until they are answered
	waiting []chan struct{}
}

// slot is the place of a request that runs.
type slot struct {
	l        *limiter
	b        *Bound
	uid      int
	computed bool // it does not count for all users any more
}

// acquire waits until a request may run, or refuses it. release ends it.
func (l *limiter) acquire(ctx context.Context, b *Bound, uid int) (*slot, error) {
	s := &slot{l: l, b: b, uid: uid}
	if uid == 0 {
		return s, nil
	}
	l.mu.Lock()
	k, u := l.userLocked(b, uid)
	if len(u.waiting) == 0 && k.mayRun(b, u) {
		k.running++
		u.running++
		l.mu.Unlock()
		return s, nil
	}
	if b.Lasts {
		n := u.running
		l.mu.Unlock()
		return nil, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("you have %d %s, the most that a user may have at once", n, b.Kind), Hint: "end one of them first"}
	}
	ready := make(chan struct{})
	if u.waiting = append(u.waiting, ready); !slices.Contains(k.order, uid) {
		k.order = append(k.order, uid)
	}
	l.mu.Unlock()
	select {
	case <-ready:
		return s, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(u.waiting, ready); i >= 0 {
		u.waiting = slices.Delete(u.waiting, i, i+1)
	} else {
		k.endLocked(u, false) // Its turn came at the same time.
		k.runLocked(b)
	}
	l.forgetLocked(k, b, uid)
	return nil, &api.Error{Kind: api.KindUnavailable, Message: "too many of your requests run at a time, and this one was canceled"}
}

// answer ends the part of a request that other users wait for: the rest depends on how fast its caller reads.
func (s *slot) answer() {
	if s == nil || s.uid == 0 || s.computed {
		return
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	k, _ := s.l.userLocked(s.b, s.uid)
	s.computed = true
	k.running--
	k.runLocked(s.b)
}

// release ends the request.
func (s *slot) release() {
	if s.uid == 0 {
		return
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	k, u := s.l.userLocked(s.b, s.uid)
	k.endLocked(u, s.computed)
	k.runLocked(s.b)
	s.l.forgetLocked(k, s.b, s.uid)
}

// userLocked returns the requests of a kind, and those of a user.
func (l *limiter) userLocked(b *Bound, uid int) (*kindOfRequest, *userRequests) {
	k := l.kinds[b.Kind]
	if k == nil {
		if l.kinds == nil {
			l.kinds = map[string]*kindOfRequest{}
		}
		k = &kindOfRequest{users: map[int]*userRequests{}}
		l.kinds[b.Kind] = k
	}
	u := k.users[uid]
	if u == nil {
		u = &userRequests{}
		k.users[uid] = u
	}
	return k, u
}

func (k *kindOfRequest) mayRun(b *Bound, u *userRequests) bool {
	return !u.full(b) && k.hasCapacity(b)
}

func (u *userRequests) full(b *Bound) bool { return u.running >= max(b.Most, 1) }

func (k *kindOfRequest) hasCapacity(b *Bound) bool { return b.Together == 0 || k.running < b.Together }

func (k *kindOfRequest) endLocked(u *userRequests, computed bool) {
	if u.running--; !computed {
		k.running--
	}
}

// runLocked runs what waits, one request of each user in turn.
func (k *kindOfRequest) runLocked(b *Bound) {
	for i := 0; i < len(k.order) && k.hasCapacity(b); {
		uid := k.order[i]
		u := k.users[uid]
		if len(u.waiting) > 0 && u.full(b) {
			i++
			continue
		}
		k.order = slices.Delete(k.order, i, i+1)
		if len(u.waiting) == 0 {
			continue
		}
		k.running++
		u.running++
		close(u.waiting[0])
		if u.waiting = u.waiting[1:]; len(u.waiting) > 0 {
			k.order = append(k.order, uid)
		}
	}
}

// forgetLocked removes a user without requests.
func (l *limiter) forgetLocked(k *kindOfRequest, b *Bound, uid int) {
	if u := k.users[uid]; u != nil && u.running == 0 && len(u.waiting) == 0 {
		delete(k.users, uid)
		k.order = slices.DeleteFunc(k.order, func(other int) bool { return other == uid })
	}
	if len(k.users) == 0 {
		delete(l.kinds, b.Kind)
	}
}
