package lease

import "slices"

// savedTicket is what is saved of a ticket over a restart of the daemon: the caller's key and its position. The ticket
// itself ends with the daemon; a caller that repeats its request with the same key gets the same position.
type savedTicket struct {
	Key      string   `json:"key"`
	UID      int      `json:"uid"`
	Rank     int      `json:"rank"`
	Sequence uint64   `json:"sequence"`
	Kinds    []string `json:"kinds"` // of the grants that it could have used
}

// savedTicketsLocked lists the tickets that a caller can claim after a restart.
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
	// Those that were not claimed yet are saved again, for the next restart.
	return append(out, t.savedTickets...)
}

// takeSavedLocked returns the saved position of a repeated request, if it has one.
func (t *Table) takeSavedLocked(r *Request) (sequence uint64, ok bool) {
	i := slices.IndexFunc(t.savedTickets, func(w savedTicket) bool { return r.Key != "" && w.Key == r.Key && w.UID == r.UID })
	if i < 0 {
		return 0, false
	}
	sequence = t.savedTickets[i].Sequence
	t.savedTickets = slices.Delete(t.savedTickets, i, i+1)
	return sequence, true
}

// yieldsToSavedLocked reports whether a saved ticket that is not claimed yet is ahead of this ticket, for the same kind
// of GPU, or may be: which of two users is ahead is known when the requests of both are there.
func (t *Table) yieldsToSavedLocked(k *Ticket) bool {
	return slices.ContainsFunc(t.savedTickets, func(w savedTicket) bool {
		first := w.Rank > k.rank() || w.Rank == k.rank() && (w.UID != k.request.UID || w.Sequence < k.sequence)
		return first && slices.ContainsFunc(k.candidates, func(g Grant) bool { return slices.Contains(w.Kinds, g.Kind()) })
	})
}

// HasSavedTickets reports whether tickets from before the restart are not claimed yet.
func (t *Table) HasSavedTickets() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.savedTickets) > 0
}

// DropSavedTickets drops the tickets that were not claimed, and serves the other requests.
func (t *Table) DropSavedTickets() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.savedTickets = nil
	t.version++
	t.evaluateLocked()
}

// savedTicketsText is the reason why a request waits for tickets from before the restart.
const savedTicketsText = "requests that waited before the daemon was restarted come first, for a moment"
