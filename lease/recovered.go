package lease

import "github.com/gpushare/gpushare/api"

// Recovered records that a restored lease's processes run; p is the first of them, if it is known. A lease whose start
// was interrupted by the end of the daemon after it was isolated is running from now on. An unknown lease is ignored.
func (t *Table) Recovered(id string, p Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil || e.busy {
		return
	}
	if p != (Process{}) {
		e.Process = p
	}
	if e.State == Placed {
		e.State = Running
		t.startTimeLocked(e)
	}
	t.changedLocked(&e.Lease)
}

// SetIsolation replaces the isolation status of the lease, after it was read back. An unknown lease is ignored.
func (t *Table) SetIsolation(id string, w api.IsolationStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.leases[id]; e != nil {
		e.Isolation = w
	}
}
