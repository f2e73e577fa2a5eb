package server

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func member(uid int) *Caller { return &Caller{Peer: &Peer{UID: uid}} }

// computing is the processor time of a process that computes without a pause.
func computing() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// flood uses slots of a millisecond for several requests of each user at a time until stop, and counts them.
func (t *slots) flood(ctx context.Context, kind work, users int, count func(uid int)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for uid := 1000; uid < 1000+users; uid++ {
		for range 8 {
			all.Go(func() {
				for {
					n, err := t.begin(ctx, kind, member(uid))
					if err != nil {
						return
					}
					<-time.After(time.Millisecond)
					n.end()
					count(uid)
				}
			})
		}
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// However many requests of many users wait, one of a user of few requests waits for the slot that runs, and for no other.
func TestLightUserIsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := slots{processor: computing()}
		stop := x.flood(t.Context(), arriving, 50, func(int) {})
		defer stop()
		<-time.After(5 * time.Second)
		for range 100 {
			<-time.After(50 * time.Millisecond)
			began := time.Now()
			n, err := x.begin(t.Context(), arriving, member(2000))
			if err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(began); waited > time.Millisecond {
				t.Fatalf("it waited for %v, want at most one slot of another user", waited)
			}
			n.end()
		}
	})
}

// Many users of many requests leave most of the time to others, whatever they ask for, and get the same. After those of one alone
// there is no pause.
func TestPausesOfHeavyUsers(t *testing.T) {
	for _, c := range []struct {
		users     int
		kinds     []work
		low, high float64 // part of the time
	}{
		{1, []work{listing}, 0.99, 1},
		{2, []work{listing}, 0.45, 0.55},
		{50, []work{listing}, 0.2, 0.45},
		{50, []work{arriving, reading, listing, readingBack}, 0.2, 0.45},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := slots{processor: computing()}
			had := map[int]int{}
			var stops []func()
			for _, kind := range c.kinds {
				stops = append(stops, x.flood(t.Context(), kind, c.users, func(uid int) {
					x.mu.Lock()
					defer x.mu.Unlock()
					had[uid]++
				}))
			}
			stop := func() {
				for _, stop := range stops {
					stop()
				}
			}
			defer stop()
			<-time.After(10 * time.Second)
			x.mu.Lock()
			clear(had)
			x.mu.Unlock()
			const period = 30 * time.Second
			<-time.After(period)
			stop()
			all := 0
			for _, n := range had {
				all += n
			}
			if part := float64(all) * float64(time.Millisecond) / float64(period); part < c.low || part > c.high+0.001 {
				t.Errorf("%d users of %d kinds of slots had %.3f of the time, want %v to %v", c.users, len(c.kinds), part, c.low, c.high)
			}
			for uid, n := range had {
				if mean := all / c.users; n < mean*8/10 || n > mean*12/10 {
					t.Errorf("user %d had %d slots of %d", uid, n, all)
				}
			}
		})
	}
}

// Slots of one kind do not wait for those of another, root waits for none, and a canceled request leaves nothing behind.
func TestSlotsThatDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := slots{processor: computing()}
		var held []*slot
		for kind := range kindsOfWork {
			for range slotsAtOnce[kind] {
				n, err := x.begin(t.Context(), kind, member(1000))
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, n)
			}
			if _, err := x.begin(t.Context(), kind, member(0)); err != nil {
				t.Error(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			canceled := make(chan error)
			go func() {
				_, err := x.begin(ctx, kind, member(1001))
				canceled <- err
			}()
			synctest.Wait()
			stop()
			if err := <-canceled; err == nil {
				t.Error("a canceled request has a slot")
			}
		}
		for _, n := range held {
			n.end()
			n.end()
		}
		for kind := range x.kinds {
			if k := &x.kinds[kind]; k.running != 0 || len(k.waiting) != 0 {
				t.Errorf("%d slots run and %d users wait at the end", k.running, len(k.waiting))
			}
		}
		<-time.After(time.Minute)
		n, err := x.begin(t.Context(), arriving, member(1002))
		if err != nil {
			t.Fatal(err)
		}
		n.end()
		if len(x.users) != 1 {
			t.Errorf("%d users are kept, want the one who had a slot lately", len(x.users))
		}
	})
}

// An administrator waits for the slot that runs and for no other, whatever members wait, in a pause too, and however much the
// administrator has used.
func TestAdministratorsAreNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := slots{processor: computing()}
		stop := x.flood(t.Context(), listing, 50, func(int) {})
		defer stop()
		<-time.After(5 * time.Second)
		admin := &Caller{Peer: &Peer{UID: 500}, Admin: true}
		paused := false
		for range 400 { // more than mostTime
			x.mu.Lock()
			paused = paused || x.pausing
			x.mu.Unlock()
			began := time.Now()
			n, err := x.begin(t.Context(), listing, admin)
			if err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(began); waited > time.Millisecond {
				t.Fatalf("an administrator waited for %v, want at most one slot of another user", waited)
			}
			<-time.After(time.Millisecond)
			n.end()
		}
		if !paused {
			t.Error("there was no pause to wait for")
		}
	})
}
