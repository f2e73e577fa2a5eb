package cgroup

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// keptCgroups are the cgroups of a scope that outlives its processes, as the pods of a claim: each may be missing, empty, removed and
// made again with the same name. It does not change: another list is another value.
type keptCgroups struct {
	cgroups  []string
	replaced chan struct{} // closed when the scope has another list
}

// keepLocked registers a scope that is kept, or replaces its cgroups. None of them need be there.
func (a *Attachments) keepLocked(s *Scope) error {
	cgroups := append([]string{s.Cgroup}, s.Further...)
	for _, cg := range cgroups {
		if err := cleanPath(cg); err != nil {
			return err
		}
		if err := a.freeLocked(s.ID, cg); err != nil {
			return err
		}
	}
	old := a.scopes[s.ID]
	if old != nil && old.kept != nil && slices.Equal(old.kept.cgroups, cgroups) {
		return nil
	}
	next := &attachment{
		cgroup: s.Cgroup, released: make(chan struct{}), kept: &keptCgroups{cgroups, make(chan struct{})},
	}
	if old != nil && old.kept != nil {
		next.released = old.released // Who waits for the end of the scope goes on.
		close(old.kept.replaced)
	} else {
		a.releaseLocked(s.ID)
	}
	a.scopes[s.ID] = next
	a.index.Register(s.ID, cgroups...)
	return nil
}

// Await blocks until a scope that is kept has a process, or with populated false until it has none, and for at most so long; ok reports
// whether that is so. It is false with a nil error after that time, and when the scope has other cgroups. ErrNotFound: there is no such
// scope any more.
func (a *Attachments) Await(ctx context.Context, id string, populated bool, most time.Duration) (ok bool, err error) {
	s, err := a.find(id)
	if err != nil {
		return false, err
	}
	if s.kept == nil {
		return false, fmt.Errorf("cannot wait for the processes of scope %s: it is not kept: %w", id, ErrNotSupported)
	}
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var ended <-chan struct{}
	if populated {
		appeared, running := make(chan struct{}), sync.WaitGroup{}
		running.Go(func() {
			defer close(appeared)
			_ = a.h.WaitAnyPopulated(limited, s.kept.cgroups) // What is there is read below.
		})
		defer running.Wait()
		defer cancel()
		ended = appeared
	} else {
		var remove func()
		ended, remove = a.changes(s)
		defer remove()
	}
	for {
		if a.populated(s) == populated {
			return true, nil
		}
		select {
		case <-ended:
			if populated {
				return a.populated(s), ctx.Err()
			}
		case <-s.kept.replaced:
			return false, nil
		case <-s.released:
			return false, fmt.Errorf("scope %s: %w", id, ErrNotFound)
		case <-limited.Done():
			if ctx.Err() != nil {
				return false, fmt.Errorf("cannot wait for the processes of scope %s: %w", id, ctx.Err())
			}
			return a.populated(s) == populated, nil
		}
	}
}

// changes has a value when one of the cgroups of a scope may have become empty.
func (a *Attachments) changes(s *attachment) (_ <-chan struct{}, remove func()) {
	all := make(chan struct{}, 1)
	done := make(chan struct{})
	var running sync.WaitGroup
	var removes []func()
	for _, cg := range s.kept.cgroups {
		events, remove, err := a.watcher.add(a.h.Dir(cg))
		if err != nil {
			continue // It is missing, or its caller looks again after a while.
		}
		removes = append(removes, remove)
		running.Go(func() {
			for {
				select {
				case <-events:
					select {
					case all <- struct{}{}:
					default:
					}
				case <-done:
					return
				}
			}
		})
	}
	return all, func() {
		close(done)
		running.Wait()
		for _, remove := range removes {
			remove()
		}
	}
}
