package lease

import "github.com/gpushare/gpushare/api"

// Previews returns where the next lease of each grant would be placed now; a grant without a place for another lease is not in it. It
// places nothing.
func (t *Table) Previews() map[Key]Place {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[Key]Place{}
	if !t.ready || t.view.Maintenance != "" {
		return out
	}
	o := t.occupancyLocked() // Once for all: they place nothing.
	for i := range t.view.Grants {
		mine := t.view.Grants[i]
		mine.Placer = api.ShareWithLocal
		if found, _ := place(&mine, &t.view, o); found != nil {
			out[mine.Key()] = *found
		}
	}
	return out
}
