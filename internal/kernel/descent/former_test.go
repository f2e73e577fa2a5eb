package descent

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFormerMounts(t *testing.T) {
	t.Parallel()
	const before = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"none", before, nil},
		{"another name", before + "31 24 0:27 / /a rw - cgroup cgroup rw,xattr,name=systemd\n", nil},
		{"a longer name", before + "31 24 0:27 / /a rw - cgroup cgroup rw,name=gpushare2\n", nil},
		{"a part of it", before + "31 24 0:27 /l1 /a rw - cgroup cgroup rw,name=gpushare\n", nil},
		{"a tmpfs with the option", before + "31 24 0:27 / /a rw - tmpfs tmpfs rw,name=gpushare\n", nil},
		{"a file system of a user", "40 35 0:31 / /home/red/x rw - fuse.x x rw,name=gpushare\n", nil},
		{"both", before + "31 24 0:27 / /run/a rw,nosuid - cgroup cgroup rw,name=gpushare\n32 24 0:28 / /run/b rw - cgroup none rw,favordynmods,name=gpushare-moves\n", []string{"/run/a", "/run/b"}},
		{"no fields", "x\n - cgroup\n", nil},
	} {
		if got := formerMounts(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A hierarchy of an earlier version ends with its mount when its cgroups were removed, although their processes run on.
func TestEmptyFormer(t *testing.T) {
	t.Parallel()
	at, name := t.TempDir(), "gpushare-test-"+strconv.Itoa(os.Getpid())
	mount := func() error {
		return unix.Mount("cgroup", at, "cgroup", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "none,name="+name)
	}
	if err := mount(); err != nil {
		t.Skip("mounting a hierarchy needs root, and a kernel with cgroup v1: ", err)
	}
	defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }() // Only after a failure it is mounted.
	cmd := exec.Command("sh", "-c", "while :; do sleep 0.01; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	lease := filepath.Join(at, "gpushare", "red-1")
	if err := os.MkdirAll(lease, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lease, procs), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if err := EmptyFormer([]string{at}); err != nil {
		t.Fatal(err)
	}
	// The kernel reports no event for it. A removed cgroup lasts for a moment. A hierarchy that is unmounted within it stays until it is mounted and unmounted again.
	await(t, "the hierarchy is still in /proc/PID/cgroup", func() bool {
		if err := unix.Unmount(at, 0); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); time.Sleep(time.Millisecond) {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/cgroup")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(b), name) {
				return true
			}
		}
		return mount() != nil
	})
}

// Users mount FUSE file systems, whose directories they name.
func FuzzMounts(f *testing.F) {
	f.Add("36 35 0:30 / /sys/fs/cgroup/gpushare rw shared:9 - cgroup cgroup rw,name=gpushare\n")
	f.Add("40 35 0:31 / /home/red/x rw - fuse.x x rw,name=gpushare\n")
	f.Fuzz(func(t *testing.T, mounts string) {
		if found := formerMounts(mounts); len(found) > 0 && !strings.Contains(mounts, "cgroup") {
			t.Errorf("%q of %q", found, mounts)
		}
	})
}
