package plugin

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/gpushare/api"
)

// watched is a node without GPUs that counts when it is read.
type watched struct {
	event chan struct{}
	mu    sync.Mutex
	reads []time.Time
}

func (w *watched) Status(context.Context) (*api.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads = append(w.reads, time.Now())
	return &api.Status{}, nil
}

// between reports whether the node was read in a time.
func (w *watched) between(from, to time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.reads, func(at time.Time) bool { return at.After(from) && !at.After(to) })
}

func (*watched) MIG(context.Context) (*api.MIGList, error) { return &api.MIGList{}, nil }

func (*watched) Spec(context.Context) (*api.SpecDocument, error) { return &api.SpecDocument{}, nil }

func (w *watched) Events(ctx context.Context, f func(api.Event)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.event:
			f(api.Event{Kind: "gpu.xid"})
		}
	}
}

// What an event says may be in the status a moment later, and what no event says is seen soon too: until then pods would stay on a GPU
// that is lost.
func TestTheNodeIsReadAgainAfterAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{event: make(chan struct{})}
		p := &Publisher{
			Node: &Node{Daemon: w, Root: t.TempDir()}, Pool: "node1", Log: slog.New(slog.DiscardHandler),
			Submit: func(context.Context, resourceslice.DriverResources) error { return nil },
		}
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx) }()
		time.Sleep(time.Minute) // of the virtual time of the bubble, as below
		event := time.Now()
		w.event <- struct{}{}
		time.Sleep(time.Minute)
		for what, c := range map[string][2]time.Duration{
			"at once":                    {0, time.Second},
			"a moment later":             {1500 * time.Millisecond, 4 * time.Second},
			"without an event":           {15 * time.Second, 30 * time.Second},
			"without an event, later on": {45 * time.Second, time.Minute},
		} {
			if !w.between(event.Add(c[0]), event.Add(c[1])) {
				t.Errorf("%s it is not read: %v after the event to %v", what, c[0], c[1])
			}
		}
		stop()
		<-done
	})
}

// A storm of events is not more than two readings a second, and what has not changed is published once. An event in calm times is read
// within a second.
func TestStormOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{event: make(chan struct{})}
		published := 0
		p := &Publisher{
			Node: &Node{Daemon: w, Root: t.TempDir()}, Pool: "node1", Log: slog.New(slog.DiscardHandler),
			Submit: func(context.Context, resourceslice.DriverResources) error { published++; return nil },
		}
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx) }()
		time.Sleep(time.Minute) // of the virtual time of the bubble, as below
		began := time.Now()
		for range 10_000 {
			w.event <- struct{}{}
			time.Sleep(3 * time.Millisecond)
		}
		if n := w.count(began, time.Now()); n < 30 || n > 2*30+1 {
			t.Errorf("in 30 s of events the node was read %d times", n)
		}
		time.Sleep(time.Minute)
		calm := time.Now()
		w.event <- struct{}{}
		time.Sleep(time.Second)
		if !w.between(calm, calm.Add(time.Second)) {
			t.Error("an event in calm times is not read within a second")
		}
		stop()
		<-done
		if published != 1 {
			t.Errorf("what has not changed was published %d times", published)
		}
	})
}

// count is how often the node was read in a time.
func (w *watched) count(from, to time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.reads {
		if at.After(from) && !at.After(to) {
			n++
		}
	}
	return n
}

// away is a gpushared that does not answer.
type away struct{ watched }

func (w *away) Status(context.Context) (*api.Status, error) {
	_, _ = w.watched.Status(context.Background())
	return nil, &api.Error{Kind: api.KindUnavailable, Message: "it does not answer"}
}

// A gpushared that does not answer is requested each second or two, and is in the log once.
func TestAwayIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		w := &away{}
		p := &Publisher{Node: &Node{Daemon: w, Root: t.TempDir()}, Pool: "node1", Log: slog.New(slog.NewTextHandler(&text, nil))}
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		p.Run(ctx)
		if n := w.count(time.Time{}, time.Now()); n < 60 {
			t.Errorf("in 5 minutes it is requested %d times", n)
		}
		if n := bytes.Count(text.Bytes(), []byte("\n")); n != 1 {
			t.Errorf("in 5 minutes the log has %d lines:\n%s", n, &text)
		}
	})
}
