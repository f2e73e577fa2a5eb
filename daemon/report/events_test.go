package report

import (
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

func TestSlowReaderGetsAGap(t *testing.T) {
	b := NewBroker(func() time.Time { return time.Unix(1000, 0) })
	slow, stopSlow := b.Subscribe()
	defer stopSlow()
	quick, stopQuick := b.Subscribe()
	defer stopQuick()
	const more = 10
	// The slow subscriber does not read: this would hang if the broker waited for it.
	for i := range subscriberQueue + more {
		b.Publish(api.Event{Kind: "x"})
		if e := <-quick.C; e.Kind != "x" || e.Seq != uint64(i+1) {
			t.Fatalf("the quick reader got %+v", e)
		}
	}
	for i := range subscriberQueue {
		if e := <-slow.C; e.Kind != "x" || e.Seq != uint64(i+1) {
			t.Fatalf("the slow reader got %+v as number %d", e, i+1)
		}
	}
	b.Publish(api.Event{Kind: "y"})
	if e := <-slow.C; e.Kind != "gap" || e.Message != "10 events were missed" {
		t.Errorf("the slow reader got no gap but %+v", e)
	}
	if e := <-slow.C; e.Kind != "y" || e.Seq != subscriberQueue+more+1 {
		t.Errorf("after the gap it got %+v", e)
	}
	b.Publish(api.Event{Kind: "z"})
	if e := <-slow.C; e.Kind != "z" {
		t.Errorf("a gap is reported twice: %+v", e)
	}
}

// A gap event that does not fit in the queue counts every missed event.
func TestGapCountsAll(t *testing.T) {
	b := NewBroker(time.Now)
	s, stop := b.Subscribe()
	defer stop()
	for range subscriberQueue + 3 {
		b.Publish(api.Event{Kind: "x"})
	}
	<-s.C // One place: the gap event takes it, and the event itself is missed.
	b.Publish(api.Event{Kind: "x"})
	for range subscriberQueue - 1 {
		<-s.C
	}
	if e := <-s.C; e.Kind != "gap" || e.Message != "3 events were missed" {
		t.Errorf("got %+v", e)
	}
	b.Publish(api.Event{Kind: "y"})
	if e := <-s.C; e.Kind != "gap" || e.Message != "1 events were missed" {
		t.Errorf("got %+v", e)
	}
	if e := <-s.C; e.Kind != "y" {
		t.Errorf("got %+v", e)
	}
}

func TestAnEndedSubscriptionGetsNothing(t *testing.T) {
	b := NewBroker(time.Now)
	s, stop := b.Subscribe()
	stop()
	stop()
	b.Publish(api.Event{Kind: "x"})
	if len(s.C) != 0 || len(b.Subs) != 0 {
		t.Errorf("%d events after the end of the subscription, %d subscribers", len(s.C), len(b.Subs))
	}
}

// Users decide what some messages say. Each reader keeps many of them.
func TestLongMessagesAreCut(t *testing.T) {
	b := NewBroker(time.Now)
	s, stop := b.Subscribe()
	defer stop()
	b.Publish(api.Event{Kind: "x", Message: strings.Repeat("ä", 1<<20)})
	if m := (<-s.C).Message; len(m) > maxMessage || len(m) < maxMessage-4 || !strings.HasSuffix(m, "ä…") {
		t.Errorf("the message has %d bytes", len(m))
	}
}

// What a reader does not see takes no place in its queue, and is not counted as missed.
func TestEventsThatAreNotSeen(t *testing.T) {
	b := NewBroker(time.Now)
	s, stop := b.SubscribeTo(func(e *api.Event) bool { return e.Tenant == "red" })
	defer stop()
	for range 2 * subscriberQueue {
		b.Publish(api.Event{Kind: "x", Tenant: "blue"})
	}
	b.Publish(api.Event{Kind: "y", Tenant: "red"})
	if n := len(s.C); n != 1 {
		t.Fatalf("%d events wait, want one", n)
	}
	if e := <-s.C; e.Kind != "y" || e.Seq != 2*subscriberQueue+1 {
		t.Errorf("got %+v", e)
	}
}
