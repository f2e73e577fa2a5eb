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
	Kind  string // routes of one kind are counted together; in a refusal: "9 KIND"
	Most  int    // of one user that run at once; 0 is 1
	Lasts bool   // it lasts as long as its caller wants: one too many is refused. Other requests wait until another ends
	All   int    // of all users that run at once; 0: no limit. Only one that lasts has this
	slot  work
}

// Reads reports whether the answer is computed within a slot. Other requests have one until they wait for something.
func (b *Bound) Reads() bool { return b.slot != arriving }

// The bounds of the routes.
var (
	Reads     = Bound{Kind: "requests that read", Most: 8, slot: reading}
	Lists     = Bound{Kind: "requests for a list", Most: 1, slot: listing} // An answer takes memory until it is read.
	ReadsBack = Bound{Kind: "requests that read back", Most: 2, slot: readingBack}
	Events    = Bound{Kind: "readers of events", Most: 8, Lasts: true}
	Outputs   = Bound{Kind: "readers of output", Most: 8, Lasts: true, All: 64} // Each may need a process.
	Awaits    = Bound{Kind: "requests that wait for an operation", Most: 8, Lasts: true}
	Starts    = Bound{Kind: "requests that start a lease", Most: 96, Lasts: true}
	Stops     = Bound{Kind: "requests that stop a lease", Most: 16}
	Changes   = Bound{Kind: "requests that change the node", Most: 4}
	Refusals  = Bound{Kind: "requests that are refused", Most: 8} // of the front
)

// limiter enforces bounds. The zero value works.
type limiter struct {
	mu      locks.Mutex[locks.Leaf] // guards what follows
	users   map[limited]*userRequests
	lasting map[string]int // requests of all users that last, by kind
}

// limited is a user and a kind of request.
type limited struct {
	uid  int
	kind string
}

type userRequests struct {
	running int
	waiting []chan struct{}
}

// acquire waits until a request may run, or refuses it. release ends it.
func (l *limiter) acquire(ctx context.Context, b *Bound, uid int) (release func(), err error) {
	if uid == 0 {
		return func() {}, nil
	}
	key := limited{uid, b.Kind}
	release = func() { l.release(b, key) }
	l.mu.Lock()
	u := l.users[key]
	if u == nil {
		if l.users == nil {
			l.users = map[limited]*userRequests{}
		}
		u = &userRequests{}
		l.users[key] = u
	}
	if b.Lasts {
		defer l.mu.Unlock()
		return release, l.addLocked(b, key, u)
	}
	if u.running < max(b.Most, 1) {
		u.running++
		l.mu.Unlock()
		return release, nil
	}
	ready := make(chan struct{})
	u.waiting = append(u.waiting, ready)
	l.mu.Unlock()
	select {
	case <-ready:
		return release, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(u.waiting, ready)
	if i >= 0 {
		u.waiting = slices.Delete(u.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 {
		release() // It might run at the same time.
	}
	return nil, &api.Error{Kind: api.KindUnavailable, Message: "too many of your requests run at a time, and this one was canceled"}
}

// addLocked counts a request that lasts, or refuses it. The fewer are left for all users, the fewer one of them may have: the last
// ones are for users who have none.
func (l *limiter) addLocked(b *Bound, key limited, u *userRequests) error {
	var why, hint string
	switch left := b.All - l.lasting[b.Kind]; {
	case u.running >= b.Most:
		why, hint = fmt.Sprintf("you have %d %s, the most that a user may have at once", u.running, b.Kind), "end one of them first"
	case b.All > 0 && u.running >= left:
		why, hint = fmt.Sprintf(
			"there are %d %s of several users, and all may have %d at once", l.lasting[b.Kind], b.Kind, b.All,
		), "try again later"
	default:
		if l.lasting == nil {
			l.lasting = map[string]int{}
		}
		u.running++
		l.lasting[b.Kind]++
		return nil
	}
	if u.running == 0 {
		delete(l.users, key)
	}
	return &api.Error{Kind: api.KindUnavailable, Message: why, Hint: hint}
}

// release lets the next request of the user run.
func (l *limiter) release(b *Bound, key limited) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[key]
	if b.Lasts {
		l.lasting[b.Kind]--
	}
	if len(u.waiting) > 0 {
		close(u.waiting[0])
		u.waiting = u.waiting[1:]
		return
	}
	if u.running--; u.running == 0 {
		delete(l.users, key)
	}
}
