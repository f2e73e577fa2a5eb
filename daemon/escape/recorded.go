package escape

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/procfs"
)

// descentRecord is the kernel's record of the processes that descend from those of each lease; *descent.Record is one.
type descentRecord interface {
	Add(lease string, pid int) (undo func() error, err error)
	// Release forgets a lease whose processes may continue.
	Release(lease string) error
	// Remove removes a lease without processes. removed: it is not recorded any more.
	Remove(lease string) (removed bool, err error)
	// Processes lists the processes in ascending order.
	Processes(lease string) ([]int, error)
	Leases() ([]string, error)
}

// Record records a process and its descendants as those of a lease. undo takes that back.
func (e *Escapes) Record(leaseID string, pid int) (undo func() error, err error) {
	if e.Descent == nil {
		return func() error { return nil }, nil
	}
	return e.Descent.Add(leaseID, pid)
}

// wasRecorded is why a process of the record belongs to a lease.
const wasRecorded = "it was inside, or a process started it that was"

// searchRecorded finds escaped processes by the record of descent: the recorded processes that are not inside. The lock of
// Escaped is held.
func (e *Escapes) searchRecorded(h cgroup.Hierarchy) (found []escapedProcess, live map[string][]int, err error) {
	x := &e.Escaped
	ids, err := e.Descent.Leases()
	if err != nil {
		return nil, nil, err
	}
	// The record is read first: a process that starts meanwhile is then inside and not recorded, and not the reverse.
	recorded := map[string][]int{}
	for _, id := range ids {
		if recorded[id], err = e.Descent.Processes(id); err != nil {
			return nil, nil, err
		}
	}
	s, err := e.readScopes(h)
	if err != nil {
		return nil, nil, err
	}
	for id, pids := range s.inside {
		if err := e.recordMissing(id, pids, recorded[id]); err != nil {
			return nil, nil, err
		}
	}
	for id, pids := range recorded {
		if _, known := e.Table.Get(id); s.root == "" || known && x.leases[id] == nil {
			continue // It is being started: its process is not inside yet.
		}
		found = append(found, outside(id, added(s.inside[id], pids), procfs.Read, s.where)...)
		if len(pids) == 0 && x.leases[id] == nil {
			_, err = e.Descent.Remove(id) // Of an earlier daemon.
		}
	}
	slices.SortFunc(found, func(a, b escapedProcess) int { return cmp.Compare(a.pid, b.pid) })
	return found, s.inside, err
}

// outside returns those of a lease's recorded processes that run outside of all leases. One in a cgroup of gpushare is in another
// lease, or about to enter one.
func outside(id string, pids []int, stat func(int) (procfs.Stat, error), where func(int) (location, bool)) (found []escapedProcess) {
	for _, pid := range pids {
		st, err := stat(pid)
		if err != nil || st.Dead() {
			continue
		}
		if at, ok := where(pid); ok && !at.managed && at.lease == "" {
			found = append(found, escapedProcess{lease: id, pid: pid, start: st.Start, name: st.Name, path: at.path, why: wasRecorded})
		}
	}
	return found
}

// recordMissing records the processes inside a lease that are not recorded: they started before there was a record, or are from
// an earlier version. A process that forks while it is read may be new and recorded.
func (e *Escapes) recordMissing(id string, inside, recorded []int) error {
	missing := added(recorded, inside)
	if len(missing) == 0 {
		return nil
	}
	now, err := e.Descent.Processes(id)
	if err != nil {
		return err
	}
	for _, pid := range added(now, missing) {
		if owner, ok := e.Port.ScopeOf(pid); !ok || owner != id {
			continue // It has exited, or is in another lease.
		}
		if _, err := e.Descent.Add(id, pid); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// updateConditions reports when escaped processes are found by looking only.
func (e *Escapes) updateConditions(enforcing bool) {
	if !enforcing || e.NoDescent == nil {
		e.Conditions.Clear("escape", "descent")
		return
	}
	e.Conditions.Set("escape", "descent", "a process that leaves its lease may not be found, if those that started it have ended: "+e.NoDescent.Error(),
		"start the hierarchy with 'systemctl start run-gpushare-descent.mount'; the kernel must not have the parameter cgroup_no_v1=named")
}
