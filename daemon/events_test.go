package daemon

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
)

func TestSlowReaderGetsAGap(t *testing.T) {
	b := newBroker(func() time.Time { return time.Unix(1000, 0) })
	slow, stopSlow := b.subscribe()
	defer stopSlow()
	quick, stopQuick := b.subscribe()
	defer stopQuick()
	const more = 10
	// Nobody reads for the slow one: this would hang if the broker waited for it.
	for i := range subscriberQueue + more {
		b.publish(api.Event{Kind: "x"})
		if e := <-quick.c; e.Kind != "x" || e.Seq != uint64(i+1) {
			t.Fatalf("the quick reader got %+v", e)
		}
	}
	for i := range subscriberQueue {
		if e := <-slow.c; e.Kind != "x" || e.Seq != uint64(i+1) {
			t.Fatalf("the slow reader got %+v as number %d", e, i+1)
		}
	}
	b.publish(api.Event{Kind: "y"})
	if e := <-slow.c; e.Kind != "gap" || e.Message != "10 events were missed" {
		t.Errorf("the slow reader got no gap but %+v", e)
	}
	if e := <-slow.c; e.Kind != "y" || e.Seq != subscriberQueue+more+1 {
		t.Errorf("after the gap it got %+v", e)
	}
	b.publish(api.Event{Kind: "z"})
	if e := <-slow.c; e.Kind != "z" {
		t.Errorf("a gap is told twice: %+v", e)
	}
}

// A gap that itself finds no room counts every event that it stands for.
func TestGapCountsAll(t *testing.T) {
	b := newBroker(time.Now)
	s, stop := b.subscribe()
	defer stop()
	for range subscriberQueue + 3 {
		b.publish(api.Event{Kind: "x"})
	}
	<-s.c // Room for one: the gap takes it, and the event itself is missed again.
	b.publish(api.Event{Kind: "x"})
	for range subscriberQueue - 1 {
		<-s.c
	}
	if e := <-s.c; e.Kind != "gap" || e.Message != "3 events were missed" {
		t.Errorf("got %+v", e)
	}
	b.publish(api.Event{Kind: "y"})
	if e := <-s.c; e.Kind != "gap" || e.Message != "1 events were missed" {
		t.Errorf("got %+v", e)
	}
	if e := <-s.c; e.Kind != "y" {
		t.Errorf("got %+v", e)
	}
}

func TestWhoeverLeftGetsNothing(t *testing.T) {
	b := newBroker(time.Now)
	s, stop := b.subscribe()
	stop()
	stop()
	b.publish(api.Event{Kind: "x"})
	if len(s.c) != 0 || len(b.subs) != 0 {
		t.Errorf("%d events for a reader that left, %d readers", len(s.c), len(b.subs))
	}
}

// stream is a response that can be read while it is written.
type stream struct {
	header http.Header
	mu     sync.Mutex // guards b
	b      bytes.Buffer
}

func (s *stream) Header() http.Header { return s.header }
func (s *stream) WriteHeader(int)     {}
func (s *stream) Flush()              {}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestEventsAreNarrowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := bare()
		d.Now = time.Now
		d.Events = newBroker(time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		streams := map[string]*stream{}
		for _, who := range []string{"root", "observer", "member", "observer and member"} {
			s := &stream{header: http.Header{}}
			streams[who] = s
			q := httptest.NewRequestWithContext(context.WithValue(ctx, peerKey{}, everyone()[who]), http.MethodGet, "/v1/events", nil)
			q.Host = "gpushare"
			go d.server.handler().ServeHTTP(s, q)
		}
		synctest.Wait()
		for _, e := range []api.Event{
			{Kind: "of-vision", Tenant: "vision"}, {Kind: "of-speech", Tenant: "speech"}, {Kind: "of-the-node", Message: "GPU 3 is held: pid 7 (secret)"},
		} {
			d.Events.publish(e)
		}
		synctest.Wait()
		for who, want := range map[string]string{
			"root": "vision speech the-node", "observer": "vision speech the-node", "member": "vision", "observer and member": "vision speech the-node",
		} {
			for _, kind := range []string{"vision", "speech", "the-node"} {
				if got := strings.Contains(streams[who].String(), `"of-`+kind+`"`); got != strings.Contains(want, kind) {
					t.Errorf("%s is told of %s: %v", who, kind, got)
				}
			}
		}
		cancel()
		synctest.Wait()
		if n := len(d.Events.subs); n != 0 {
			t.Errorf("%d readers that went away are still there", n)
		}
	})
}
