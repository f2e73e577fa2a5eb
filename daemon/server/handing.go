package server

import (
	"context"

	"github.com/gpushare/gpushare/internal/locks"
)

// handedAtOnce is how many connections of one user are on their way to the front. The front takes connections in the order in which
// they come, so one who connects without pause would keep others waiting for all of theirs.
const handedAtOnce = 2

// handing keeps the connections of each user that are passed to the front, and those that wait for it.
type handing struct {
	mu locks.Mutex[locks.Leaf] // guards what follows
	of map[int]*handed         // by uid; without those who have none
}

type handed struct {
	now   chan struct{} // has those on their way
	count int           // of these and of those that wait
}

// begin waits until a connection of a user may be passed on. end is called when the front has it.
func (h *handing) begin(ctx context.Context, uid int) (end func(), err error) {
	h.mu.Lock()
	u := h.of[uid]
	if u == nil {
		if h.of == nil {
			h.of = map[int]*handed{}
		}
		u = &handed{now: make(chan struct{}, handedAtOnce)}
		h.of[uid] = u
	}
	u.count++
	h.mu.Unlock()
	select {
	case u.now <- struct{}{}:
		return func() { <-u.now; h.leave(uid, u) }, nil
	case <-ctx.Done():
		h.leave(uid, u)
		return nil, ctx.Err()
	}
}

func (h *handing) leave(uid int, u *handed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if u.count--; u.count == 0 {
		delete(h.of, uid)
	}
}
