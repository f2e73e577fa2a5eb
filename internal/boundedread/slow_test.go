package boundedread

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hung is a file of a server that does not answer until it is released.
type hung struct {
	release chan struct{}
	waiting atomic.Int32
}

func (h *hung) read(string, int, int) ([]byte, bool, error) {
	h.waiting.Add(1)
	defer h.waiting.Add(-1)
	<-h.release
	return []byte("late"), false, nil
}

// However many callers read what does not answer, there are few goroutines, every caller goes on, and other users are not concerned.
func TestReadsThatDoNotAnswerAreBounded(t *testing.T) {
	h := &hung{release: make(chan struct{})}
	w := &lostReads{timeout: 10 * time.Millisecond}
	w.read = func(path string, flags, limit int) ([]byte, bool, error) {
		if path == "hung" {
			return h.read(path, flags, limit)
		}
		return []byte("text"), false, nil
	}
	var callers sync.WaitGroup
	for range 200 {
		callers.Go(func() {
			if _, _, err := w.prefix(t.Context(), "hung", 0, 1000, 10); !errors.Is(err, ErrNoAnswer) {
				t.Errorf("a read that does not answer: %v", err)
			}
		})
	}
	callers.Wait()
	if n := h.waiting.Load(); n != mostOfOwner {
		t.Errorf("%d reads of one user wait, want %d", n, mostOfOwner)
	}
	w.timeout = time.Minute // A file that answers does so late on a busy host.
	if b, _, err := w.prefix(t.Context(), "file", 0, 1001, 10); err != nil || string(b) != "text" {
		t.Errorf("the file of another user: %q, %v", b, err)
	}
	w.timeout = 10 * time.Millisecond
	// Of many users.
	for uid := range uint32(100) {
		for range mostOfOwner {
			_, _, _ = w.prefix(t.Context(), "hung", 0, uid, 10)
		}
	}
	if n := h.waiting.Load(); n != mostLost {
		t.Errorf("%d reads of all users wait, want %d", n, mostLost)
	}
	close(h.release)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		w.mu.Lock()
		left, lost := len(w.owners), w.lost
		w.mu.Unlock()
		if left == 0 && lost == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Fatalf("after their answer %d reads are still counted, of %d users", w.lost, len(w.owners))
	}
	w.timeout = time.Minute
	if b, _, err := w.prefix(t.Context(), "hung", 0, 1000, 10); err != nil || string(b) != "late" {
		t.Errorf("when it answers again: %q, %v", b, err)
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	h := &hung{release: make(chan struct{})}
	defer close(h.release)
	w := &lostReads{timeout: time.Hour, read: h.read}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := w.prefix(ctx, "hung", 0, 1000, 10); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("it ended with %v", err)
	}
}
