package descent

import (
	"strings"
	"testing"
)

// Users mount FUSE file systems, whose directories they name.
func FuzzMounts(f *testing.F) {
	f.Add("36 35 0:30 / /sys/fs/cgroup/gpushare rw shared:9 - cgroup cgroup rw,name=gpushare\n")
	f.Add("40 35 0:31 / /home/red/x rw - fuse.x x rw,name=gpushare\n")
	f.Fuzz(func(t *testing.T, mounts string) {
		if dir, ok := findMount(mounts); ok && !strings.Contains(mounts, "cgroup") {
			t.Errorf("%q of %q", dir, mounts)
		}
	})
}
