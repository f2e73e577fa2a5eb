package lease

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// stateFormat is the format of the state. New fields keep it.
const stateFormat = 2

// state is what outlives the daemon: leases that hold a place, and the places that are kept free. Tickets do not.
type state struct {
	Format       int           `json:"format"`
	Generation   uint64        `json:"generation"`
	Leases       []Lease       `json:"leases"`
	Reserved     []reservation `json:"reserved,omitempty"`
	SavedTickets []savedTicket `json:"waiters,omitempty"`
}

type reservation struct {
	Key
	Places []Place `json:"places"`
}

// State is what Restore reads, to be kept until the next boot.
func (t *Table) State() ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stateLocked()
}

func (t *Table) stateLocked() ([]byte, error) {
	s := state{Format: stateFormat, Generation: t.generation, Leases: t.copiesLocked(), SavedTickets: t.savedTicketsLocked()}
	for k, p := range t.reserved {
		s.Reserved = append(s.Reserved, reservation{k, p})
	}
	slices.SortFunc(s.Reserved, func(a, b reservation) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Grant, b.Grant))
	})
	return json.Marshal(s)
}

// Restore fills an empty table from the state of an earlier life. The caller then looks for each lease's processes and
// calls Ended for those that have none.
func (t *Table) Restore(b []byte) error {
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("cannot read the leases: %w", err)
	}
	if s.Format != stateFormat {
		return fmt.Errorf("cannot read the leases: they are in format %d, and this version reads %d", s.Format, stateFormat)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ready || len(t.leases) > 0 {
		return fmt.Errorf("cannot restore the leases: the table is in use")
	}
	t.generation = max(t.generation, s.Generation)
	for _, l := range s.Leases {
		// One that was placed and not started has no process, and who would have started it is gone. One that we start is
		// recorded before it has a process: whether it has one must be looked for.
		if !l.State.Live() || l.ID == "" || l.Process == (Process{}) && l.Origin != OriginDetached {
			continue
		}
		if l.State == Isolated { // the record of a running lease is written just before it runs
			l.State = Running
		}
		t.generation = max(t.generation, l.Generation)
		t.leases[l.ID] = &entry{Lease: l}
	}
	for _, r := range s.Reserved {
		t.reserved[r.Key] = r.Places
	}
	t.savedTickets = s.SavedTickets
	for _, w := range s.SavedTickets {
		t.sequence = max(t.sequence, w.Sequence)
	}
	return nil
}
