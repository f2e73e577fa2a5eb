package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// maxUnread is how many bytes a follower may not have read yet; then it is dropped. The reader that it shares with others does not
// wait for it.
const maxUnread = 1 << 20

// errSlow: the follower did not read what was printed.
var errSlow = errors.New("the reader was too slow")

const slowNotice = "gpushare: this reader was too slow, and what follows is missing: run the command again"

// followers are the readers of output that follow the journal. Those of one lease share one journalctl, which ends with the
// last of them. The zero value is ready to use.
type followers struct {
	mu  sync.Mutex // guards what follows, and the fields of each tail and follower
	all map[string]*tail
}

// tail is one journalctl that follows a lease.
type tail struct {
	readers map[*follower]bool
	last    string // the cursor of the last entry, first the one after which it began
	stop    context.CancelFunc
}

type entry struct{ cursor, line string }

// entryBytes is what an entry takes next to its line.
const entryBytes = 256

// follower is one reader of a tail.
type follower struct {
	after  string // the last entry of the tail before the first one here
	unread []entry
	bytes  int
	err    error         // why no more follows
	wake   chan struct{} // has a token when one of them has changed
}

// join adds a follower to the tail of an id. The first one starts it: read calls each for all that comes after a cursor.
func (s *followers) join(id, cursor string, read func(ctx context.Context, each func(entry)) error) *follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[id]
	if t == nil {
		ctx, stop := context.WithCancel(context.Background()) // It ends with its last follower, which calls stop.
		t = &tail{readers: map[*follower]bool{}, last: cursor, stop: stop}
		if s.all == nil {
			s.all = map[string]*tail{}
		}
		s.all[id] = t
		go func() { // ends with its last follower
			err := read(ctx, func(e entry) { s.deliver(t, e) })
			s.end(id, t, err)
		}()
	}
	f := &follower{after: t.last, wake: make(chan struct{}, 1)}
	t.readers[f] = true
	return f
}

// leave ends a follower, and the tail with the last one.
func (s *followers) leave(id string, f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.all { // A tail that failed is not there any more, and another may be.
		delete(t.readers, f)
	}
	if t := s.all[id]; t != nil && len(t.readers) == 0 {
		delete(s.all, id)
		t.stop()
	}
}

// deliver gives an entry to all readers, and drops those that have too much already.
func (s *followers) deliver(t *tail, e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.last = e.cursor
	for f := range t.readers {
		if f.bytes += entryBytes + len(e.line); f.bytes > maxUnread {
			f.unread, f.err = nil, errSlow
			delete(t.readers, f)
		} else {
			f.unread = append(f.unread, e)
		}
		f.changed()
	}
}

// end ends the followers of a tail whose journalctl has ended.
func (s *followers) end(id string, t *tail, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.stop()
	if s.all[id] == t {
		delete(s.all, id)
	}
	for f := range t.readers {
		if f.err = err; err == nil {
			f.err = errors.New("cannot read the journal: journalctl has ended")
		}
		f.changed()
	}
}

// changed wakes it. The lock is held.
func (f *follower) changed() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// take returns what was not read yet, and why no more follows.
func (s *followers) take(f *follower) ([]entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := f.unread
	f.unread, f.bytes = nil, 0
	return all, f.err
}

// copyAfter copies what comes after a cursor until ended is closed, and returns the last one. What is at the cursor was read after the
// follower joined: it is the last entry before that, or it comes from the tail too, after others that were read.
func (s *followers) copyAfter(ctx context.Context, f *follower, cursor string, ended <-chan struct{}, to io.Writer) (string, error) {
	read := cursor != f.after // up to the cursor
	for {
		select {
		case <-ctx.Done():
			return cursor, ctx.Err()
		case <-ended:
			return cursor, nil
		case <-f.wake:
		}
		entries, failed := s.take(f)
		for _, e := range entries {
			if read {
				read = e.cursor != cursor
				continue
			}
			if _, err := io.WriteString(to, e.line); err != nil {
				return cursor, err
			}
			cursor = e.cursor
		}
		if errors.Is(failed, errSlow) {
			_, err := fmt.Fprintln(to, slowNotice)
			return cursor, errors.Join(failed, err)
		}
		if failed != nil {
			return cursor, failed
		}
	}
}
