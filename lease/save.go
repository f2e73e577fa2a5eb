package lease

import (
	"context"
	"fmt"
)

// changedLocked counts a change that must be saved, and reports it.
func (t *Table) changedLocked(l *Lease) {
	t.version++
	if t.cfg.Changed != nil {
		c := t.copyLocked(l)
		if part, ok := t.partLocked(&c, t.sharesLocked()); ok {
			c.Part = &part
		}
		t.cfg.Changed(c)
	}
}

// save writes the state as it is now or later. If several callers wait, one write serves all.
func (t *Table) save(ctx context.Context) error {
	if t.cfg.Save == nil {
		return nil
	}
	t.mu.Lock()
	want := t.version
	t.mu.Unlock()
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if t.saved >= want {
		return nil
	}
	t.mu.Lock()
	now, b, err := t.version, []byte(nil), error(nil)
	b, err = t.stateLocked()
	t.mu.Unlock()
	if err == nil {
		err = t.cfg.Save(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("cannot record the leases: %w", err)
	}
	t.saved = now
	return nil
}

// SaveAgain writes the state although it was written: what it was written to was removed.
func (t *Table) SaveAgain(ctx context.Context) error {
	t.saveMu.Lock()
	t.saved = 0
	t.saveMu.Unlock()
	return t.save(ctx)
}
