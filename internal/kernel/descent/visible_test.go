package descent

import (
	"os"
	"testing"

	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
)

// No other program sees the record: what a process of the host has in its cgroups and mounts is what it had.
func TestTheRecordIsNotVisible(t *testing.T) {
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
		if now := allMounts(t); now != mounts {
			t.Errorf("%s: the mounts were\n%s\nand are\n%s", c.name, mounts, now)
		}
		if changed := cgroups.Changed(procfstest.CgroupsOf(t, os.Getpid())); changed != "" {
			t.Errorf("%s: %s", c.name, changed)
		}
		if err := r.Release("one"); err != nil {
			t.Error(err)
		}
	}
}

// allMounts are those of this process.
func allMounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
