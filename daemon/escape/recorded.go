package escape

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// descentRecord is the kernel's record of the processes that descend from those of each lease; *descent.Record is one.
type descentRecord interface {
	Add(lease string, pid int) (undo func() error, err error)
	// Release forgets a lease whose processes may continue.
	Release(lease string) error
	// Members returns the start time of each process, by lease and pid, in clock ticks since boot.
	Members() (map[string]map[int]uint64, error)
	// Lost counts the processes of leases that are not recorded: since the record began those for which it had no place, and those of
	// each user who had too many, by uid.
	Lost() (all uint64, ofUsers map[int]uint64, err error)
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
	// The record is read first: a process that starts meanwhile is then inside and not recorded, and not the reverse.
	if x.recorded, err = e.Descent.Members(); err != nil {
		return nil, nil, err
	}
	s, err := e.readScopes(h)
	if err != nil {
		return nil, nil, err
	}
	for id, pids := range s.inside {
		if err := e.recordMissing(id, pids, x.recorded[id]); err != nil {
			return nil, nil, err
		}
	}
	for id, members := range x.recorded {
		if _, known := e.Table.Get(id); s.root == "" || known && x.leases[id] == nil {
			continue // It is being started: its process is not inside yet.
		}
		found = append(found, outside(id, members, s.inside[id], procfs.Read, s.where)...)
	}
	if len(x.partial) > 0 {
		e.followRecorded()
		more, _, err := e.searchByLooking(h)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, more...)
	}
	slices.SortFunc(found, func(a, b escapedProcess) int { return cmp.Compare(a.pid, b.pid) })
	return slices.CompactFunc(found, func(a, b escapedProcess) bool { return a.pid == b.pid }), s.inside, nil
}

// followRecorded lets the search by looking find what recorded processes started and was not recorded.
func (e *Escapes) followRecorded() {
	x := &e.Escaped
	for id := range x.partial {
		for pid, start := range x.recorded[id] {
			if x.tracker.members[pid] == nil {
				x.tracker.add(id, pid, start, 0)
			}
		}
	}
}

// outside returns those of a lease's recorded processes that run outside of all leases. One in a cgroup of gpushare is in another
// lease, or about to enter one.
func outside(
	id string, members map[int]uint64, inside []int, stat func(int) (procfs.Stat, error), where func(int) (location, bool),
) (found []escapedProcess) {
	for _, pid := range added(inside, slices.Sorted(maps.Keys(members))) {
		st, err := stat(pid)
		if err != nil || st.Dead() || st.Start != members[pid] {
			continue
		}
		if at, ok := where(pid); ok && !at.managed && at.lease == "" {
			found = append(found, escapedProcess{lease: id, pid: pid, start: st.Start, name: st.Name, path: at.path, why: wasRecorded})
		}
	}
	return found
}

// mostTried is how many processes of a lease with too many a pass tries to record. There may be as many as the kernel has processes.
const mostTried = 64

// recordMissing records the processes inside a lease that are not recorded: they started before there was a record, are from an
// earlier version, or the record was full. A process that forks while it is read may be new and recorded.
func (e *Escapes) recordMissing(id string, inside []int, recorded map[int]uint64) error {
	missing := added(slices.Sorted(maps.Keys(recorded)), inside)
	if len(missing) == 0 {
		return nil
	}
	now, err := e.Descent.Members()
	if err != nil {
		return err
	}
	missing = added(slices.Sorted(maps.Keys(now[id])), missing)
	if why := e.Escaped.partial[id]; why == tooMany || why == tooManyOfUser {
		missing = missing[:min(len(missing), mostTried)] // The others are found by looking.
	}
	for _, pid := range missing {
		if owner, ok := e.Port.ScopeOf(pid); !ok || owner != id {
			continue // It has exited, or is in another lease.
		}
		if _, err := e.Descent.Add(id, pid); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
			return err
		}
	}
	return nil
}

// notePartial notes the leases of which the record may miss processes, because some were not recorded. They are searched by looking
// too, until they have ended. The lock of Escaped is held.
func (e *Escapes) notePartial() error {
	if e.Descent == nil {
		return nil
	}
	x := &e.Escaped
	lost, ofUsers, err := e.Descent.Lost()
	if err != nil {
		return err
	}
	again, more := true, uint64(0) // It may happen in each pass for hours.
	for id, l := range x.leases {
		why := tooManyOfUser
		switch {
		case lost > x.lost || x.partial[id] == tooMany:
			why = tooMany
		case ofUsers[l.UID] <= x.lostOf[l.UID]:
			continue
		}
		again = again && x.partial[id] == why
		x.partial[id] = why
	}
	for uid, n := range ofUsers {
		more += max(n, x.lostOf[uid]) - x.lostOf[uid]
	}
	more += max(lost, x.lost) - x.lost
	if !again {
		e.Log.Warn("processes of leases were not recorded", "count", more, "users", slices.Sorted(maps.Keys(ofUsers)))
	}
	x.lost, x.lostOf = max(lost, x.lost), ofUsers
	return nil
}

// Why the record may miss processes of a lease.
const (
	tooMany       = "their processes are more than are recorded at a time"
	tooManyOfUser = "their users have more processes than are recorded of one user at a time"
	startedFirst  = "they started before the record"
)

// updateConditions reports when escaped processes may not be found. The lock of Escaped is held.
func (e *Escapes) updateConditions(enforcing bool) {
	const mayBeMissed = "may not be found, if those that started it have ended: "
	if !enforcing || e.NoDescent == nil {
		e.Conditions.Clear("escape", "descent")
	} else {
		e.Conditions.Set(
			"escape",
			"descent",
			"a process that leaves its lease "+mayBeMissed+e.NoDescent.Error(),
			"close the GPUs to logins (node.isolation.logins: closed): then it is killed when it uses one; 'ls /sys/kernel/btf/vmlinux' shows whether the kernel describes its types",
		)
	}
	if !enforcing || e.NotKept == nil {
		e.Conditions.Clear("escape", "kept")
	} else {
		e.Conditions.Set("escape", "kept", "a process that leaves its lease while gpushared does not run "+mayBeMissed+e.NotKept.Error(),
			"'mount -t bpf bpf /sys/fs/bpf', and 'systemctl restart gpushared'")
	}
	for _, c := range []struct{ why, key, hint string }{
		{tooMany, "processes", "limit the processes of the tenant in the spec (tasks); 'gpushare lease list' shows the leases"},
		{
			tooManyOfUser, "user",
			"limit the processes of their tenants in the spec (tasks); 'gpushare lease list' shows the leases. Leases of other users are not affected",
		},
		{startedFirst, "earlier", "it passes when these leases have ended: 'gpushare lease list'"},
	} {
		var ids []string
		for id, why := range e.Escaped.partial {
			if why == c.why {
				ids = append(ids, id)
			}
		}
		if !enforcing || len(ids) == 0 {
			e.Conditions.Clear("escape", c.key)
			continue
		}
		slices.Sort(ids)
		e.Conditions.Set(
			"escape", c.key, fmt.Sprintf("a process that leaves one of these leases %s%s: %s", mayBeMissed, c.why, listed(ids)), c.hint,
		)
	}
}

// listed lists some leases.
func listed(ids []string) string {
	const most = 5
	if len(ids) <= most {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
}

// updateFormer reports hierarchies of an earlier version until they are unmounted, also on a node that is only observed.
func (e *Escapes) updateFormer() {
	if e.FormerMounts == nil {
		return
	}
	mounts, err := e.FormerMounts()
	if err != nil {
		e.Log.Warn("cannot look for what an earlier version has mounted", "error", err)
		return
	}
	if len(mounts) == 0 {
		e.Conditions.Clear("hierarchy", "")
		e.FormerMounts = nil // No version mounts them any more.
		return
	}
	e.Conditions.Set(
		"hierarchy",
		"",
		"every process of the host has the cgroup hierarchies of an earlier version, next to which Slurm does not start: "+
			strings.Join(mounts, ", "),
		"'umount "+strings.Join(mounts, " ")+"'",
	)
}
