package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// occupiedIsolation is an Isolation that finds processes of no lease on some GPUs.
type occupiedIsolation struct {
	fakeIsolation
	at     map[gpu.UUID]bool
	starts int
}

func (w *occupiedIsolation) Isolate(ctx context.Context, l Lease, p Process) (IsolationResult, error) {
	w.starts++
	for _, id := range l.Place.GPUs {
		if w.at[id] {
			return IsolationResult{}, &Occupied{
				GPU: id,
				Err: &api.Error{Kind: api.KindUnavailable, Message: "cannot start a lease: " + OccupiedText},
			}
		}
	}
	return w.fakeIsolation.Isolate(ctx, l, p)
}

// A request that waits and finds its place occupied when it starts waits again, where it was in the queue and with the same id and
// limit, and gets the next place that is free. The place is closed at once, so that it is not tried again and again.
func TestAnOccupiedPlaceIsWaitedFor(t *testing.T) {
	instances := partitioned(0)
	for name, v := range map[string]View{
		"a GPU":       {GPUs: []GPUView{device(0, api.ModeExclusive)}, Grants: []Grant{exclusive("red", "x", 1), exclusive("blue", "x", 1)}},
		"an instance": {GPUs: []GPUView{instances}, Grants: []Grant{mig("red", "x", "3g.20gb"), mig("blue", "x", "3g.20gb")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &occupiedIsolation{at: map[gpu.UUID]bool{"GPU-0": true}}
				saved := 0
				tab := New(Config{Isolation: w, Save: func(context.Context, []byte) error { saved++; return nil }})
				tab.Update(v)
				wait, started := time.Minute, time.Now()
				first, err := tab.Submit(Request{Tenant: "red", Admin: true, Wait: &wait})
				if err != nil {
					t.Fatal(err)
				}
				second := queue(t, tab, "blue", "x")
				id := first.ID()
				if u, err := first.Await(t.Context(), nil); err != nil || !u.Placed {
					t.Fatalf("%+v, %v", u, err)
				}
				time.Sleep(10 * time.Second) // In the time of the bubble.
				if _, _, err := tab.Start(t.Context(), id, Process{PID: 42, Start: 7}); !errors.Is(err, ErrQueuedAgain) {
					t.Fatalf("an occupied place: %v", err)
				}
				if u := next(
					t, first,
				); u.Placed || u.Lease.Position != 1 || u.Lease.ID != id || u.Lease.State != api.LeaseQueued || len(u.Lease.GPUs) > 0 ||
					u.Lease.Waiting == "" {
					t.Errorf("it waits as %+v", u.Lease)
				}
				if isPlaced(tab, first) || isPlaced(tab, second) || w.starts != 1 || w.removed != 0 || saved != 2 {
					t.Errorf("%+v with %d starts, %d records", tab.List(), w.starts, saved)
				}

				tab.Update(v) // Not occupied any more, as far as the daemon knows.
				if !isPlaced(tab, first) || isPlaced(tab, second) {
					t.Fatalf("it lost its place in the queue: %+v", tab.List())
				}
				if _, _, err := tab.Start(t.Context(), id, Process{PID: 42, Start: 7}); !errors.Is(err, ErrQueuedAgain) {
					t.Fatalf("occupied again: %v", err)
				}
				_, err = first.Await(t.Context(), nil)
				if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != api.KindUnavailable || time.Since(started) != wait {
					t.Errorf("after %v: %v", time.Since(started), err)
				}

				w.at = nil
				tab.Update(v)
				if _, _, err := tab.Start(t.Context(), second.ID(), Process{PID: 43, Start: 7}); err != nil {
					t.Errorf("the next one: %v", err)
				}
			})
		})
	}
}

// Nothing waits again that does not wait, that was ended meanwhile, or for which a newer spec has no place.
func TestAnOccupiedPlaceThatIsNotWaitedFor(t *testing.T) {
	v := View{GPUs: []GPUView{device(0, api.ModeExclusive)}, Grants: []Grant{exclusive("red", "x", 1)}}
	forever := time.Duration(0)
	for _, c := range []struct {
		name   string
		wait   *time.Duration
		during func(*Table, *Ticket)
		again  bool
	}{
		{name: "it does not wait", during: func(*Table, *Ticket) {}},
		{name: "it was ended", wait: &forever, during: func(tab *Table, k *Ticket) { _ = tab.Ended(context.Background(), k.ID(), "stopped") }},
		{name: "a newer spec has no place for it", wait: &forever, again: true, during: func(tab *Table, _ *Ticket) {
			other := v
			other.Generation, other.Grants = 9, []Grant{timeslice("red", "x", 10, gib)}
			tab.Update(other)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &occupiedIsolation{at: map[gpu.UUID]bool{"GPU-0": true}}
			tab := New(Config{Isolation: w})
			tab.Update(v)
			k, err := tab.Submit(Request{Tenant: "red", Admin: true, Wait: c.wait})
			if err != nil {
				t.Fatal(err)
			}
			next(t, k)
			tab.cfg.Save = func(context.Context, []byte) error { c.during(tab, k); tab.cfg.Save = nil; return nil } // before it is isolated
			_, _, err = tab.Start(t.Context(), k.ID(), Process{PID: 42, Start: 7})
			if errors.Is(err, ErrQueuedAgain) != c.again || err == nil {
				t.Errorf("got %v", err)
			}
			if c.again {
				if _, err := k.Next(t.Context()); err == nil {
					t.Error("it waits for what cannot be")
				}
			}
			if left := tab.List(); len(left) > 0 {
				t.Errorf("there still is %+v", left)
			}
		})
	}
}
