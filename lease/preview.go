package lease

import "github.com/gpushare/gpushare/api"

// Preview returns where the next lease of a grant would be placed now. ok is false if there is no such grant, or no
// place for another lease of it. It places nothing.
func (t *Table) Preview(k Key) (p Place, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ready || t.view.Maintenance != "" {
		return Place{}, false
	}
	for i := range t.view.Grants {
		if g := &t.view.Grants[i]; g.Key() == k {
			mine := *g
			mine.Placer = api.ShareWithLocal
			if found, _ := place(&mine, &t.view, t.occupancyLocked()); found != nil {
				return *found, true
			}
		}
	}
	return Place{}, false
}
