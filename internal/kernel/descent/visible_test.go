package descent

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
)

// No other program sees the record: what a process of the host has in its cgroups and mounts is what it had.
func TestTheRecordIsNotVisible(t *testing.T) {
	t.Parallel()
	if !procfstest.InMountNamespace(t) {
		return
	}
	pinned := bpffs(t)
	for _, c := range []struct{ name, dir string }{{"it ends with the process", ""}, {"it is pinned", pinned}} {
		mounts, cgroups := allMounts(t), procfstest.CgroupsOf(t, os.Getpid())
		r := reopened(t, c.dir, maxMembers)
		if _, err := r.Add("one", os.Getpid()); err != nil {
			t.Fatal(err)
		}
		for mount, line := range allMounts(t) {
			if mounts[mount] == "" {
				t.Errorf("%s: it is seen: %s", c.name, line)
			}
		}
		if changed := cgroups.Changed(procfstest.CgroupsOf(t, os.Getpid())); changed != "" {
			t.Errorf("%s: %s", c.name, changed)
		}
		if err := r.Release("one"); err != nil {
			t.Error(err)
		}
	}
}

// allMounts are the lines of the mounts of this process, by what each says without the mount point. Those of other tests, which are in the
// namespace since it was made, may still end: a directory that is removed takes what is mounted on it along in all namespaces, and one that
// is renamed has another path.
func allMounts(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(b)) {
		const mountPoint = 4 // id parent major:minor root mountpoint options …
		fields := strings.Fields(line)
		found[strings.Join(slices.Delete(fields, mountPoint, mountPoint+1), " ")] = line
	}
	return found
}
