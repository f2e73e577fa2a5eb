package cgroup

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// TakeOut repairs a move that reached another process: one that got p's pid after p was reaped. It moves that process and
// what it forked meanwhile from cgroup cg, or from below it, back to the cgroup that it came from. Without such a process it
// does nothing. The error never is procfs.ErrNoProcess.
func (h Hierarchy) TakeOut(p Process, cg string) error { return h.takeOut(p, cg, writeFile, 0) }

// maxReuses bounds how often in a row a pid is followed to another process. Each needs another exit and another fork within
// microseconds.
const maxReuses = 8

// maxTakeOutRounds bounds how often the descendants are listed: each round moves what was forked during the last one.
const maxTakeOutRounds = 100

func (h Hierarchy) takeOut(p Process, cg string, write writer, depth int) error {
	other, err := procfs.Read(p.PID)
	if err != nil || other.Start == p.Start {
		return nil //nolint:nilerr // no other process has the pid
	}
	at, err := procfs.Cgroup(other.PID)
	if err != nil || !Below(at, cg) {
		return nil //nolint:nilerr // it exited, or the move did not reach it
	}
	cannot := func(err error) error {
		return fmt.Errorf(
			"cannot take pid %d (%s), which has the pid of a process that exited, out of cgroup %s: %w", other.PID, other.Name, cg, err,
		)
	}
	from, err := h.origin(other, cg)
	if err != nil {
		return cannot(err)
	}
	if from == "" {
		return nil
	}
	move := func(m Process) error {
		err := h.move(m, from, write, depth+1)
		if errors.Is(err, procfs.ErrNoProcess) {
			return nil
		}
		return err
	}
	first := identity(other)
	if err := move(first); err != nil {
		return cannot(err)
	}
	for range maxTakeOutRounds {
		ps, err := h.Processes(cg)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return cannot(err)
		}
		ps = slices.DeleteFunc(ps, func(m Process) bool { return !descends(m, first) })
		if len(ps) == 0 {
			return nil
		}
		for _, m := range ps {
			if err := move(m); err != nil {
				return cannot(err)
			}
		}
	}
	return cannot(errors.New("it forks faster than its processes are moved"))
}

// origin is the cgroup that a process came from which was forked a moment ago and then moved into cg. The kernel does not
// record it, but a process begins in the cgroup of its parent. It is empty when the process was forked in cg.
//
// After the death of its parent a process is the child of init or of a subreaper, whose cgroup may be less restricted. So a
// parent counts if it has the same users or is in the same session. For root no cgroup is less restricted. Without such a
// parent the leader of the session counts, if it has the same users.
func (h Hierarchy) origin(s procfs.Stat, cg string) (string, error) {
	users, err := procfs.UIDs(s.PID)
	if err != nil {
		return "", err
	}
	sameUsers := func(pid int) bool {
		u, err := procfs.UIDs(pid)
		return err == nil && slices.Equal(u, users)
	}
	root := !slices.ContainsFunc(users, func(id int) bool { return id != 0 })
	if parent, err := procfs.Read(s.PPID); err == nil && parent.Start <= s.Start {
		at, err := procfs.Cgroup(parent.PID)
		if err == nil && Below(at, cg) {
			return "", nil
		}
		sibling := parent.PID > 1 && (parent.Session == s.Session || sameUsers(parent.PID))
		if err == nil && (root || sibling) && procfs.Alive(parent.PID, parent.Start) {
			return at, nil
		}
	}
	if leader, err := procfs.Read(s.Session); err == nil && leader.PID != s.PID && leader.Start <= s.Start && sameUsers(leader.PID) {
		if at, err := procfs.Cgroup(leader.PID); err == nil && !Below(at, cg) && procfs.Alive(leader.PID, leader.Start) {
			return at, nil
		}
	}
	return "", errors.New("the cgroup that it came from is not known: its parent exited")
}

// descends reports whether ancestor is a parent of p, or a parent of its parent, and so on.
func descends(p, ancestor Process) bool {
	// A chain of parents is short. The bound is for a tree that changes during the search.
	for range 256 {
		s, err := procfs.Read(p.PID)
		if err != nil || s.PPID <= 1 {
			return false
		}
		parent, err := procfs.Read(s.PPID)
		if err != nil {
			return false
		}
		if p = identity(parent); p == ancestor {
			return true
		}
	}
	return false
}
