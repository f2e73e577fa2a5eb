package request

import (
	"errors"
	"fmt"
	"io"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
)

// Bodies of requests take memory while they arrive, and as long as their handler keeps what they have. A small part of each
// user needs no permission; the rest comes out of what all users have together. Root has no limit.
const (
	MaxBody       = api.MaxRequest      // bytes of one body
	OwnBody       = 128 << 10           // bytes of each user that need no permission
	maxBodies     = 4 << 20             // bytes of all users, besides OwnBody of each
	maxBodyOfUser = MaxBody + MaxBody/4 // bytes
	bodyPart      = 4 << 10             // bytes that are read at least before more memory is taken: a user may have many requests at once
)

// BodyMemory counts the memory of bodies. The zero value works.
type BodyMemory struct {
	mu     locks.Mutex[locks.Leaf] // guards what follows
	byUID  map[int]int
	shared int
}

// Take takes memory, or returns why it cannot.
func (m *BodyMemory) Take(uid, n int) error {
	if uid == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.byUID[uid]
	if now+n > maxBodyOfUser {
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("your requests that arrive or wait have %d bytes, and a user may have %d at once", now+n, maxBodyOfUser),
			Hint:    "let some of them end first",
		}
	}
	more := beyond(now+n) - beyond(now)
	if m.shared+more > maxBodies {
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("too many long requests of several users arrive or wait: they may have %d bytes together", maxBodies),
			Hint:    fmt.Sprintf("try again later; requests of up to %d bytes are not affected", OwnBody),
		}
	}
	if m.byUID == nil {
		m.byUID = map[int]int{}
	}
	m.byUID[uid] = now + n
	m.shared += more
	return nil
}

// Give gives memory back.
func (m *BodyMemory) Give(uid, n int) {
	if uid == 0 || n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.byUID[uid]
	m.shared -= beyond(now) - beyond(now-n)
	if m.byUID[uid] = now - n; now == n {
		delete(m.byUID, uid)
	}
}

// beyond is how much of the memory of a user comes out of what all users have together.
func beyond(n int) int { return max(0, n-OwnBody) }

// ReadBody reads a whole body. take is called before more memory is used.
func ReadBody(from io.Reader, take func(n int) error) ([]byte, error) {
	var b []byte
	for {
		if len(b) == cap(b) {
			more := min(max(bodyPart, len(b)/2), MaxBody+1-len(b)) // One more, to see the end.
			if err := take(more); err != nil {
				return nil, err
			}
			b = append(make([]byte, 0, len(b)+more), b...)
		}
		n, err := from.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
