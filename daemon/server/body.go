package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
)

// Bodies of requests take memory while they arrive, and as long as their handler keeps what they have. A small part of each
// user needs no permission; the rest comes out of what all users have together. Root has no limit.
const (
	maxBodies     = 4 << 20             // bytes of all users, besides ownBody of each
	maxBodyOfUser = MaxBody + MaxBody/4 // bytes
	ownBody       = 128 << 10           // bytes
	bodyPart      = 16 << 10            // bytes that are read at least before more memory is taken
)

// bodyMemory counts the memory of bodies. The zero value works.
type bodyMemory struct {
	mu     locks.Mutex[locks.Leaf] // guards what follows
	byUID  map[int]int
	shared int
}

// take takes memory, or returns why it cannot.
func (m *bodyMemory) take(uid, n int) error {
	if uid == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.byUID[uid]
	if now+n > maxBodyOfUser {
		return &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("your requests that arrive or wait have %d bytes, and a user may have %d at once", now+n, maxBodyOfUser), Hint: "let some of them end first"}
	}
	more := beyond(now+n) - beyond(now)
	if m.shared+more > maxBodies {
		return &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("too many long requests of several users arrive or wait: they may have %d bytes together", maxBodies), Hint: fmt.Sprintf("try again later; requests of up to %d bytes are not affected", ownBody)}
	}
	if m.byUID == nil {
		m.byUID = map[int]int{}
	}
	m.byUID[uid] = now + n
	m.shared += more
	return nil
}

func (m *bodyMemory) give(uid, n int) {
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
func beyond(n int) int { return max(0, n-ownBody) }

// incoming is the body of a request. The connection is closed after the answer unless the end of the body was read: what
// is left may never arrive.
type incoming struct {
	io.ReadCloser
	answer http.Header
	ended  bool
}

// Read reads, and keeps the connection at the end.
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended = true
		b.answer.Del("Connection")
	}
	return n, err
}

// closesUnread answers a request whose body is not read to its end by closing the connection. Package http would wait for
// the rest, without a deadline.
func closesUnread(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.ContentLength == 0 || q.Body == nil {
			h.ServeHTTP(w, q)
			return
		}
		b := &incoming{ReadCloser: q.Body, answer: w.Header()}
		w.Header().Set("Connection", "close")
		defer func() {
			if !b.ended {
				_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // A test's recorder has none.
			}
		}()
		own := q.WithContext(q.Context()) // The server looks at the type of its own body.
		own.Body = b
		h.ServeHTTP(w, own)
	})
}

// Body reads the whole body, within a deadline and with limited memory. Keep says how much of it is kept.
func (c *Call) Body() ([]byte, error) {
	deadline := http.NewResponseController(c.W)
	_ = deadline.SetReadDeadline(time.Now().Add(readTimeout)) // A test's recorder has none.
	b, err := c.readBody(http.MaxBytesReader(c.W, c.R.Body, MaxBody))
	if err == nil {
		_ = deadline.SetReadDeadline(time.Time{})
		return b, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("the request did not arrive within %v", readTimeout)}
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, &api.Error{Kind: api.KindInvalid, Message: "the document is larger than 1 MiB", Hint: "a spec of this size is probably a mistake"}
	}
	if _, refused := errors.AsType[*api.Error](err); refused {
		return nil, err
	}
	return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot read the request: " + err.Error()} // Its caller went away, or sent no chunks.
}

func (c *Call) readBody(from io.Reader) ([]byte, error) {
	var b []byte
	for {
		if len(b) == cap(b) {
			more := min(max(bodyPart, len(b)), MaxBody+1-len(b)) // One more, to see the end.
			if err := c.take(more); err != nil {
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

func (c *Call) take(n int) error {
	if c.bodies == nil {
		return nil // a test without a server
	}
	if err := c.bodies.take(c.Caller.UID, n); err != nil {
		return err
	}
	c.body += n
	return nil
}

// Keep says that at most n bytes of what the body had are kept from now on.
func (c *Call) Keep(n int) {
	if n < c.body {
		c.bodies.give(c.Caller.UID, c.body-n)
		c.body = n
	}
}
