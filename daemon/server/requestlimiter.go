package server

import (
	"context"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
)

// maxRunning is how many brief requests of one user run at a time. The user's other requests wait, so that the requests of
// other users compete with at most so many, and not with one for each connection.
const maxRunning = 16

// requestLimiter limits how many requests of each user run at a time. The zero value works.
type requestLimiter struct {
	mu    locks.Mutex[locks.Leaf] // guards byUID
	byUID map[int]*userRequests
}

type userRequests struct {
	slots chan struct{}
	count int // requests that run or wait
}

// acquire waits until the request may run; done ends it. Root never waits: an administrator must be able to repair the node.
func (t *requestLimiter) acquire(ctx context.Context, uid int) (done func(), err error) {
	if uid == 0 {
		return func() {}, nil
	}
	u := t.join(uid)
	select {
	case u.slots <- struct{}{}:
		return func() {
			<-u.slots
			t.leave(uid, u)
		}, nil
	case <-ctx.Done():
		t.leave(uid, u)
		return nil, &api.Error{Kind: api.KindUnavailable, Message: "too many of your requests run at a time, and this one was canceled"}
	}
}

func (t *requestLimiter) join(uid int) *userRequests {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.byUID[uid]
	if u == nil {
		u = &userRequests{slots: make(chan struct{}, maxRunning)}
		if t.byUID == nil {
			t.byUID = map[int]*userRequests{}
		}
		t.byUID[uid] = u
	}
	u.count++
	return u
}

func (t *requestLimiter) leave(uid int, u *userRequests) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.count--; u.count == 0 {
		delete(t.byUID, uid)
	}
}
