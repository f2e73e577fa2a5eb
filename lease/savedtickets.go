package lease

import (
	"cmp"
	"slices"
)

// savedTicket is a ticket as far as it outlives the table: whose it was, and where it stood. The ticket itself dies with the
// daemon; whoever held it asks again with the same key and gets the same place.
type savedTicket struct {
	Key      string   `json:"key"`
	UID      int      `json:"uid"`
	Rank     int      `json:"rank"`
	Sequence uint64   `json:"sequence"`
	Kinds    []string `json:"kinds"` // of GPUs that it could have used
}

// savedTicketsLocked lists the tickets that can come back.
func (t *Table) savedTicketsLocked() []savedTicket {
	var out []savedTicket
	for _, k := range t.queue {
		if k.request.Key == "" {
			continue
		}
		w := savedTicket{Key: k.request.Key, UID: k.request.UID, Rank: k.rank(), Sequence: k.sequence}
		for i := range k.candidates {
			if kind := k.candidates[i].Kind(); !slices.Contains(w.Kinds, kind) {
				w.Kinds = append(w.Kinds, kind)
			}
		}
		out = append(out, w)
	}
	// Those that have not come back yet would be lost to a third life otherwise.
	return append(out, t.savedTickets...)
}

// takeSavedLocked gives a ticket that comes back its old place, and tells whether it had one.
func (t *Table) takeSavedLocked(r *Request) (sequence uint64, ok bool) {
	i := slices.IndexFunc(t.savedTickets, func(w savedTicket) bool { return r.Key != "" && w.Key == r.Key && w.UID == r.UID })
	if i < 0 {
		return 0, false
	}
	sequence = t.savedTickets[i].Sequence
	t.savedTickets = slices.Delete(t.savedTickets, i, i+1)
	return sequence, true
}

// yieldsToSavedLocked tells whether somebody who is expected back goes before the ticket, for the same kind of GPU.
func (t *Table) yieldsToSavedLocked(k *Ticket) bool {
	return slices.ContainsFunc(t.savedTickets, func(w savedTicket) bool {
		first := cmp.Or(cmp.Compare(w.Rank, k.rank()), cmp.Compare(k.sequence, w.Sequence)) > 0
		return first && slices.ContainsFunc(k.candidates, func(g Grant) bool { return slices.Contains(w.Kinds, g.Kind()) })
	})
}

// HasSavedTickets tells whether tickets of an earlier life have not come back yet.
func (t *Table) HasSavedTickets() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.savedTickets) > 0
}

// DropSavedTickets gives up those who did not come back, and serves the others.
func (t *Table) DropSavedTickets() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.savedTickets = nil
	t.version++
	t.evaluateLocked()
}

// savedTicketsText is why one waits for those who were there before.
const savedTicketsText = "those who waited before the daemon was restarted come first, for a moment"
