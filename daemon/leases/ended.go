package leases

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/lease"
)

// What is remembered of leases that ended: so many, for so long, and no longer than until the next boot.
const (
	maxEnded       = 200
	endedRetention = 24 * time.Hour
)

// endedLease is a lease that is no more.
type endedLease struct {
	Lease  lease.Lease    `json:"lease"`
	At     time.Time      `json:"at"`
	Result *launch.Result `json:"result,omitempty"`

	encoded []byte // as it is kept: none of this changes any more, and all are written with every lease that ends
}

func (e *endedLease) wire() api.Lease {
	w := e.Lease.Wire()
	w.State, w.Ended = api.LeaseEnded, &e.At
	if e.Result != nil {
		w.Result, w.ExitCode = e.Result.String(), new(e.Result.ExitCode())
	}
	return w
}

// endedLeases remembers leases that ended, oldest first. The zero value works.
type endedLeases struct {
	mu      locks.Mutex[locks.Leaf] // guards what follows
	list    []endedLease
	results map[string]launch.Result // of leases that are about to be gone
	changed bool                     // since the last encode
}

// result remembers how a lease's command ended, for the moment that it is gone.
func (e *endedLeases) result(id string, r launch.Result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.results == nil {
		e.results = map[string]launch.Result{}
	}
	e.results[id] = r
}

// add remembers a lease that is gone. One that never ran is nothing to remember.
func (e *endedLeases) Add(l lease.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := endedLease{Lease: l, At: time.Now()}
	if r, ok := e.results[l.ID]; ok {
		x.Result = &r
		delete(e.results, l.ID)
	}
	if l.Started == nil {
		return
	}
	e.list = append(e.list, x)
	e.trimLocked()
	e.changed = true
}

func (e *endedLeases) trimLocked() {
	over := max(0, len(e.list)-maxEnded)
	for over < len(e.list) && time.Since(e.list[over].At) > endedRetention {
		over++
	}
	e.list = slices.Delete(e.list, 0, over)
}

// all gives those that are remembered, the last first.
func (e *endedLeases) all() []endedLease {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trimLocked()
	out := slices.Clone(e.list)
	slices.Reverse(out)
	return out
}

// get finds the last one of this id.
func (e *endedLeases) get(id string) (endedLease, bool) {
	for _, x := range e.all() {
		if x.Lease.ID == id {
			return x, true
		}
	}
	return endedLease{}, false
}

// encode gives what is to be kept until the next boot; nil when nothing changed.
func (e *endedLeases) encode() ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.changed {
		return nil, nil
	}
	e.changed = false
	all := []byte{'['}
	for i := range e.list {
		x := &e.list[i]
		if x.encoded == nil {
			var err error
			if x.encoded, err = json.Marshal(x); err != nil {
				return nil, err
			}
		}
		if i > 0 {
			all = append(all, ',')
		}
		all = append(all, x.encoded...)
	}
	return append(all, ']'), nil
}

// restore reads what encode gave an earlier life.
func (ls *Leases) restoreEnded() error {
	b, err := ls.RunDir.Read("ended.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ls.Ended.mu.Lock()
	defer ls.Ended.mu.Unlock()
	if err := json.Unmarshal(b, &ls.Ended.list); err != nil {
		return fmt.Errorf("cannot read the leases that ended: %w", err)
	}
	return nil
}

// saveEnded keeps them until the next boot.
func (ls *Leases) saveEnded() {
	b, err := ls.Ended.encode()
	if err == nil && b != nil {
		err = ls.RunDir.Write("ended.json", b)
	}
	if err != nil {
		ls.Log.Warn("cannot keep what is known of leases that ended", "error", err)
	}
}

// EndedLeases are the leases that are remembered, the last first.
func (ls *Leases) EndedLeases() []api.Lease {
	var out []api.Lease
	for _, e := range ls.Ended.all() {
		out = append(out, e.wire())
	}
	return out
}
