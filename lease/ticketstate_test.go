package lease

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// In every test of this package a ticket moves only as the table of states says.
func init() {
	ticketMoved = func(k *Ticket, to ticketState) {
		if !slices.Contains(ticketStates[k.state].next, to) {
			panic(fmt.Sprintf("internal error: ticket %s went from %s to %s", k.id, k.state, to))
		}
	}
}

// Every state has its row, is reached, and ends; what is kept of a state is there in the next ones.
func TestTicketStates(t *testing.T) {
	reached := map[ticketState]bool{}
	var reach func(s ticketState)
	reach = func(s ticketState) {
		if !reached[s] {
			reached[s] = true
			for _, next := range ticketStates[s].next {
				reach(next)
			}
		}
	}
	reach(ticketWaiting)
	for s := range reached {
		if _, ok := ticketStates[s]; !ok {
			t.Errorf("%q has no row", s)
		}
	}
	for s, rule := range ticketStates {
		if !reached[s] {
			t.Errorf("no ticket is %s", s)
		}
		for i, next := range rule.next {
			if next == s || slices.Contains(rule.next[:i], next) {
				t.Errorf("%s has %s twice", s, next)
			}
		}
		if rule.over {
			if rule.instance || rule.victims || rule.kept {
				t.Errorf("a ticket that is %s is over, and still has something", s)
			}
			continue
		}
		for _, end := range []ticketState{ticketFailed, ticketCancelled} {
			if !slices.Contains(rule.next, end) {
				t.Errorf("a ticket that is %s cannot be %s", s, end)
			}
		}
	}
}

// ticketWalk is a node, and the ticket that a walk is about.
type ticketWalk struct {
	*dynamicFixture
	k   *Ticket
	who fakeRequester
}

// wait submits the request of the walk.
func (w *ticketWalk) wait(tenant, grant string) {
	w.t.Helper()
	var err error
	if w.k, err = w.Submit(Request{Tenant: tenant, Grant: grant, Admin: true, By: &w.who, Wait: queueForever()}); err != nil {
		w.t.Fatal(err)
	}
}

// idle has one GPU that creates instances, and no lease.
func idle(t *testing.T) *ticketWalk {
	return &ticketWalk{dynamicFixture: newDynamicFixture(t, 1, many(mig("a", "small", "1g.6gb"), 9), mig("a", "all", "4g.24gb"))}
}

// busy has whole GPUs, and leases on all of them that may be stopped.
func busy(t *testing.T) (w *ticketWalk, leases []Lease) {
	w = &ticketWalk{dynamicFixture: newDynamicFixture(t, 0, low(many(exclusive("batch", "one", 1), 2)), exclusive("vision", "two", 2))}
	w.view.GPUs = []GPUView{device(0, api.ModeExclusive), device(1, api.ModeExclusive)}
	w.update()
	return w, []Lease{run(t, w.Table, "batch", "one"), run(t, w.Table, "batch", "one")}
}

// crowded has a GPU that is full of instances with leases that may be stopped.
func crowded(t *testing.T) (w *ticketWalk, leases []Lease) {
	w = &ticketWalk{dynamicFixture: newDynamicFixture(t, 1, low(many(mig("batch", "small", "1g.6gb"), 4)), mig("vision", "all", "4g.24gb"))}
	for range 4 {
		k := queue(t, w.Table, "batch", "small")
		w.createPending()
		l, _, err := w.Start(t.Context(), k.ID(), Process{PID: int(k.sequence) + 1000, Start: 1})
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	return w, leases
}

// ids are the ids of leases.
func ids(leases []Lease) (out []string) {
	for _, l := range leases {
		out = append(out, l.ID)
	}
	return out
}

// ticketWalks lead a ticket into each state in which it is in the queue.
func ticketWalks() map[ticketState]func(t *testing.T) *ticketWalk {
	return map[ticketState]func(t *testing.T) *ticketWalk{
		ticketWaiting: func(t *testing.T) *ticketWalk {
			w, _ := busy(t)
			w.view.Grants = slices.Clone(w.view.Grants)
			w.view.Grants[0].Preempt = ""
			w.view.Generation++
			w.update()
			w.wait("vision", "two")
			return w
		},
		ticketSoon: func(t *testing.T) *ticketWalk {
			w := idle(t)
			w.setClosed([]PendingInstance{{GPU: "GPU-0"}}, "it is being changed")
			w.wait("a", "small")
			return w
		},
		ticketPlanned: func(t *testing.T) *ticketWalk {
			w := idle(t)
			w.wait("a", "small")
			return w
		},
		ticketCreating: func(t *testing.T) *ticketWalk {
			w := idle(t)
			w.wait("a", "small")
			w.TakePendingInstances()
			return w
		},
		ticketChosen: func(t *testing.T) *ticketWalk {
			w, _ := busy(t)
			w.wait("vision", "two")
			return w
		},
		ticketPreempting: func(t *testing.T) *ticketWalk {
			w, _ := busy(t)
			w.wait("vision", "two")
			w.TakePreemptions()
			return w
		},
	}
}

// TestTicketTransitions walks each transition of the table.
func TestTicketTransitions(t *testing.T) {
	type step struct{ from, to ticketState }
	seen, check := map[step]bool{}, ticketMoved
	moves := map[*Ticket][]ticketState{}
	ticketMoved = func(k *Ticket, to ticketState) {
		check(k, to)
		seen[step{k.state, to}] = true
		moves[k] = append(moves[k], to)
	}
	defer func() { ticketMoved = check }()

	for state, reach := range ticketWalks() {
		for end, by := range map[ticketState]func(w *ticketWalk){
			ticketCancelled: func(w *ticketWalk) { w.k.Cancel() },
			ticketFailed: func(w *ticketWalk) {
				w.who.now = Standing{Denied: "removed"}
				w.Recheck()
			},
		} {
			t.Run(fmt.Sprintf("%s, then %s", state, end), func(t *testing.T) {
				w := reach(t)
				if w.k.state != state {
					t.Fatalf("the ticket is %s", w.k.state)
				}
				by(w)
				if m := moves[w.k]; w.k.state != end || m[len(m)-1] != end || w.k.pending != nil || w.k.preempt != nil {
					t.Errorf("it is %s after %v, and has %v and %v", w.k.state, m, w.k.pending, w.k.preempt)
				}
				if _, err := w.k.Next(t.Context()); err == nil {
					t.Error("its caller gets no error")
				}
			})
		}
	}
	for _, c := range []struct {
		name string
		walk func(t *testing.T) *ticketWalk
		path []ticketState
	}{
		{"placed at once", func(t *testing.T) *ticketWalk {
			w := idle(t)
			w.view.GPUs[0].Instances = []InstanceView{instance(0, "1g.6gb", 1, 0, 1, 6*gib)}
			w.update()
			w.wait("a", "small")
			return w
		}, []ticketState{ticketPlaced}},
		{"an instance is created when another change is over", func(t *testing.T) *ticketWalk {
			w := ticketWalks()[ticketSoon](t)
			w.setClosed([]PendingInstance{{GPU: "GPU-0"}}, "")
			w.createPending()
			return w
		}, []ticketState{ticketSoon, ticketWaiting, ticketPlanned, ticketCreating, ticketPlaced}},
		{"an instance is planned again, cannot be created, and the GPU is avoided", func(t *testing.T) *ticketWalk {
			w := idle(t)
			w.wait("a", "small")
			w.update()
			w.FinishPendingInstances(w.TakePendingInstances(), map[gpu.UUID]bool{"GPU-0": true})
			return w
		}, []ticketState{ticketPlanned, ticketWaiting, ticketPlanned, ticketCreating, ticketWaiting}},
		{"leases are stopped", func(t *testing.T) *ticketWalk {
			w, _ := busy(t)
			w.wait("vision", "two")
			w.update()
			end(t, w.Table, victims(w.Table)...)
			return w
		}, []ticketState{ticketChosen, ticketWaiting, ticketChosen, ticketPreempting, ticketPlaced}},
		{"leases that are ending are waited for", func(t *testing.T) *ticketWalk {
			w, leases := busy(t)
			for _, id := range ids(leases) {
				if err := w.Ending(id, "stopped"); err != nil {
					t.Fatal(err)
				}
			}
			w.wait("vision", "two")
			end(t, w.Table, ids(leases)...)
			return w
		}, []ticketState{ticketPreempting, ticketPlaced}},
		{"what was freed does not become free", func(t *testing.T) *ticketWalk {
			w, _ := busy(t)
			w.wait("vision", "two")
			stopped := victims(w.Table)
			w.view.GPUs[0].Closed = "cordoned"
			w.update()
			end(t, w.Table, stopped...)
			w.now = w.now.Add(freedFor)
			w.update()
			return w
		}, []ticketState{ticketChosen, ticketPreempting, ticketWaiting}},
		{"the node only observes meanwhile", func(t *testing.T) *ticketWalk {
			w, _ := busy(t)
			w.wait("vision", "two")
			w.TakePreemptions()
			w.view.Observing = true
			w.update()
			return w
		}, []ticketState{ticketChosen, ticketPreempting, ticketWaiting}},
		{"an instance is created in what was freed, at the third attempt", func(t *testing.T) *ticketWalk {
			w, _ := crowded(t)
			w.wait("vision", "all")
			end(t, w.Table, victims(w.Table)...)
			w.update()
			w.FinishPendingInstances(w.TakePendingInstances(), nil)
			w.createPending()
			return w
		}, []ticketState{
			ticketChosen,
			ticketPreempting,
			ticketPlanned,
			ticketPreempting,
			ticketPlanned,
			ticketCreating,
			ticketPreempting,
			ticketPlanned,
			ticketCreating,
			ticketPlaced,
		}},
		{"its place is occupied when it starts", func(t *testing.T) *ticketWalk {
			w, leases := busy(t)
			end(t, w.Table, ids(leases)...)
			w.cfg.Isolation = &occupiedIsolation{at: map[gpu.UUID]bool{"GPU-0": true}}
			w.wait("vision", "two")
			if _, _, err := w.Start(t.Context(), w.k.ID(), Process{PID: 42, Start: 7}); !errors.Is(err, ErrQueuedAgain) {
				t.Fatal(err)
			}
			return w
		}, []ticketState{ticketPlaced, ticketWaiting}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if w := c.walk(t); !slices.Equal(moves[w.k], c.path) {
				t.Errorf("it went %v, want %v", moves[w.k], c.path)
			}
		})
	}
	for state, rule := range ticketStates {
		for _, next := range rule.next {
			if !seen[step{state, next}] {
				t.Errorf("no walk goes from %s to %s", state, next)
			}
		}
	}
}

// A request whose caller does not wait is kept while an instance is being created for it, but not for what may take long.
func TestWhoDoesNotWaitIsRefusedWhenThatTakesLong(t *testing.T) {
	for name, happens := range map[string]func(w *ticketWalk){
		"maintenance":            func(w *ticketWalk) { w.view.Maintenance = "maintenance"; w.update() },
		"a directory that hangs": func(w *ticketWalk) { w.who.now = Standing{Unsure: "the directory hangs"}; w.Recheck() },
	} {
		t.Run(name, func(t *testing.T) {
			for _, wait := range []*time.Duration{nil, queueForever()} {
				w := idle(t)
				var err error
				if w.k, err = w.Submit(Request{Tenant: "a", Grant: "small", Admin: true, By: &w.who, Wait: wait}); err != nil {
					t.Fatal(err)
				}
				w.TakePendingInstances()
				happens(w)
				want := ticketCreating
				if wait == nil {
					want = ticketFailed
				}
				if w.k.state != want {
					t.Errorf("one who waits (%v) is %s", wait != nil, w.k.state)
				}
			}
		})
	}
}
