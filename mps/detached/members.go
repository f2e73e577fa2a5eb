package detached

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// members lists the running processes of a service, the oldest first. Servers of MPS run as the users that they serve. Its processes
// are identified by what no user can set or make long: their cgroup, and the children of one that is identified. The environment, with
// its token, is read only of processes of gpushared's own user and of the session of the service. All processes are read for it, so
// it is called only when a service starts, stops or has failed.
func (r *record) members(ctx context.Context) ([]procfs.Stat, error) {
	all, err := procfs.All()
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	all = slices.DeleteFunc(all, func(s procfs.Stat) bool { return s.Dead() || s.Start < r.Start || s.PID == os.Getpid() })
	member := map[int]bool{}
	for _, s := range all {
		member[s.PID] = r.inCgroup(s.PID) || r.hasToken(ctx, s)
	}
	for found := true; found; {
		found = false
		for _, s := range all {
			if !member[s.PID] && member[s.PPID] {
				member[s.PID], found = true, true
			}
		}
	}
	all = slices.DeleteFunc(all, func(s procfs.Stat) bool { return !member[s.PID] })
	slices.SortFunc(all, func(a, b procfs.Stat) int {
		if a.Start != b.Start {
			return int(int64(a.Start - b.Start))
		}
		return a.PID - b.PID
	})
	return all, nil
}

// inCgroup reports whether a process is in the cgroup of the service, which has its name and which only root can enter.
func (r *record) inCgroup(pid int) bool {
	if r.Cgroup == "" || filepath.Base(r.Cgroup) != r.Name {
		return false // It was moved to another one before it was recorded.
	}
	cg, err := procfs.Cgroup(pid)
	return err == nil && (cg == r.Cgroup || strings.HasPrefix(cg, r.Cgroup+"/"))
}

// hasToken reports whether a process was started with the token. A process that may not be read is not of the service.
func (r *record) hasToken(ctx context.Context, s procfs.Stat) bool {
	if r.PID == 0 || s.Session != r.PID {
		uids, err := procfs.UIDs(s.PID)
		if err != nil || slices.ContainsFunc(uids, func(uid int) bool { return uid != os.Geteuid() }) {
			return false
		}
	}
	b, err := procfs.Environment(ctx, s.PID)
	return err == nil && containsEntry(b, tokenEnv+"="+r.Token)
}

// containsEntry reports whether an environment in the format of /proc has an entry.
func containsEntry(b []byte, entry string) bool {
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if string(kv) == entry {
			return true
		}
	}
	return false
}
