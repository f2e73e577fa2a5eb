package report

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/text"
)

// subscriberQueue is how many events a slow reader may fall behind before it gets a gap.
const subscriberQueue = 256

// maxMessage is the length of the longest message of an event, in bytes: users decide some of it.
const maxMessage = 1 << 10

// broker passes events to all subscribers and never waits for one.
type broker struct {
	now  func() time.Time
	gpus *gpuNames

	mu     locks.Mutex[locks.Leaf] // guards what follows
	seq    uint64
	recent recent
	Subs   map[*subscriber]struct{}
}

// subscriber is one reader of events.
type subscriber struct {
	C      chan *api.Event // shared by all readers: none changes it
	sees   func(*api.Event) bool
	missed uint64 // events since the last one that it got; guarded by the mutex of the broker
}

// NewBroker returns a broker without subscribers.
func NewBroker(now func() time.Time) *broker {
	return &broker{now: now, gpus: &gpuNames{}, Subs: map[*subscriber]struct{}{}}
}

// Publish numbers an event, keeps it, and offers it to all subscribers.
func (b *broker) Publish(e api.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seq++
	e.Seq, e.At, e.Message = b.seq, b.now(), text.Short(b.gpus.write(e.Message), maxMessage)
	b.recent.add(&e)
	for s := range b.Subs {
		if s.sees == nil || s.sees(&e) {
			s.offer(&e)
		}
	}
}

// offer is called with the lock of the broker.
func (s *subscriber) offer(e *api.Event) {
	if s.missed > 0 {
		gap := &api.Event{Seq: e.Seq, At: e.At, Kind: "gap", Message: fmt.Sprintf("%d events were missed", s.missed)}
		select {
		case s.C <- gap:
			s.missed = 0
		default:
			s.missed++
			return
		}
	}
	select {
	case s.C <- e:
	default:
		s.missed++
	}
}

// Subscribe adds a subscriber; the function removes it.
func (b *broker) Subscribe() (*subscriber, func()) { return b.SubscribeTo(nil) }

// SubscribeTo adds a subscriber to the events that sees returns true for; nil: to all. It is called with a lock, and decides
// by its argument alone. An event that a reader does not see does not wake it.
func (b *broker) SubscribeTo(sees func(*api.Event) bool) (*subscriber, func()) {
	s := &subscriber{C: make(chan *api.Event, subscriberQueue), sees: sees}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Subs[s] = struct{}{}
	return s, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.Subs, s)
	}
}
