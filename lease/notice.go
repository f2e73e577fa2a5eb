package lease

// Notice is one line for the user of a lease.
type Notice struct {
	Kind string // of the event that reports it; empty if another event does
	Text string
}

// Notice adds a line for the lease's user; the last ones are kept. An unknown lease is ignored.
func (t *Table) Notice(id string, n Notice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.leases[id]; e != nil {
		t.noticeLocked(e, n.Kind, n.Text)
	}
}

func (t *Table) noticeLocked(e *entry, kind, text string) {
	e.Note(text)
	t.version++
	if t.cfg.Noticed != nil {
		t.cfg.Noticed(t.copyLocked(&e.Lease), Notice{kind, text})
	}
}
