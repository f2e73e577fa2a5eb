package lease

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/internal/owed"
)

// stateFormat is the version of the format. New fields do not change it.
const stateFormat = 2

// state is what is saved over a restart of the daemon: leases that have a place, the places that are kept free, and the
// positions of tickets.
type state struct {
	Format       int           `json:"format"`
	Generation   uint64        `json:"generation"`
	Named        uint64        `json:"named,omitempty"` // the generation of the spec whose names it has
	Leases       []Lease       `json:"leases"`
	Reserved     []reservation `json:"reserved,omitempty"`
	SavedTickets []savedTicket `json:"saved_tickets,omitempty"`
	// Lately is what was used up to its time. The leases go on from there, so it is exact whenever the state was written.
	Lately *Lately `json:"used_lately,omitempty"`
	// Owed is what users owe of their grants.
	Owed []owed.Account `json:"owed,omitempty"`
	// EndedKeys are written with the end of their leases: a late second request of an engine never gets another one.
	EndedKeys []EndedKey `json:"ended_keys,omitempty"`
}

type reservation struct {
	Key
	Places []Place `json:"places"`
}

// State returns what Restore reads. It is valid until the next boot.
func (t *Table) State() ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stateLocked()
}

func (t *Table) stateLocked() ([]byte, error) {
	s := state{
		Format:       stateFormat,
		Generation:   t.generation,
		Named:        t.named,
		Leases:       t.recordsLocked(),
		SavedTickets: t.savedTicketsLocked(),
		EndedKeys:    t.endedKeys,
		Owed:         t.owed.List(t.cfg.Now()),
	}
	if !t.lately.at.IsZero() {
		used := t.lately.list()
		s.Lately = &used
	}
	for k, p := range t.reserved {
		s.Reserved = append(s.Reserved, reservation{k, p})
	}
	slices.SortFunc(s.Reserved, func(a, b reservation) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Grant, b.Grant))
	})
	return json.Marshal(s)
}

// recordsLocked returns the leases to encode while the lock is held: they are not copied, as for a caller that keeps them.
func (t *Table) recordsLocked() []Lease {
	sorted := t.sortedLocked()
	out := make([]Lease, len(sorted))
	for i, e := range sorted {
		out[i] = e.Lease
	}
	return out
}

// Restore fills an empty table from the state of the previous run. The caller then finds each lease's processes and
// calls Ended for leases that have none.
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
	named := t.named
	t.named = s.Named
	for _, l := range s.Leases {
		// A lease that was placed and not started has no process, and the caller that would start it has ended. A
		// detached lease is recorded before it has a process: the caller checks whether it has one.
		// A keyed lease waits for its cgroup.
		if !l.State.Live() || l.ID == "" || l.Process == (Process{}) && l.Origin != OriginDetached && !l.AwaitsCgroup() {
			continue
		}
		if l.State == Isolated { // the record is written just before the lease is running
			l.State = Running
		}
		t.generation = max(t.generation, l.Generation)
		t.leases[l.ID] = &entry{Lease: l}
	}
	for _, r := range s.Reserved {
		t.reserved[r.Key] = r.Places
	}
	if s.Lately != nil {
		t.lately.restore(s.Lately)
	}
	t.endedKeys = s.EndedKeys
	t.owed.Restore(s.Owed)
	t.savedTickets = s.SavedTickets
	for _, w := range s.SavedTickets {
		t.sequence = max(t.sequence, w.Sequence)
	}
	// The daemon may have ended after it accepted a spec with other names and before it recorded the leases.
	if list := t.renames.After(t.named); len(list) > 0 {
		t.renameLocked(list)
	}
	t.named = max(t.named, named)
	return nil
}
