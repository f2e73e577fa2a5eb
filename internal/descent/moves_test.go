package descent

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAreQuick(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       bool
	}{
		{"none", "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", false},
		{"the host's", "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate,favordynmods\n", true},
		{"that of the unit", "31 24 0:27 / /run/gpushare/moves rw - cgroup cgroup rw,favordynmods,name=gpushare-moves\n", true},
		{"another option", "31 24 0:27 / /a rw - cgroup cgroup rw,nofavordynmods\n", false},
		{"another file system", "31 24 0:27 / /a rw - tmpfs tmpfs rw,favordynmods\n", false},
		{"no fields", "x\n - cgroup\n", false},
	} {
		if got := areQuick(c.text); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// While a record is open, a hierarchy of this host has the option, as the kernel reports it. A mount at no path is not reported, so
// that it is mounted again in a mount namespace of this test.
func TestMovesDoNotWait(t *testing.T) {
	r := open(t)
	if r.WhySlow != nil {
		t.Skip("needs a mount with favordynmods, which Linux has from 6.0 on: ", r.WhySlow)
	}
	reported := make(chan string, 1)
	go func() { // The thread ends with it, and with the thread its namespace.
		runtime.LockOSThread()
		text, err := mountinfoWith(t.TempDir())
		if err != nil {
			t.Error(err)
		}
		reported <- text
	}()
	if text := <-reported; !areQuick(text) {
		t.Errorf("no hierarchy has the option %s:\n%s", quickOption, text)
	}
}

// mountinfoWith mounts the hierarchy at a directory without the option, which does not change one that exists.
func mountinfoWith(dir string) (string, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return "", err
	}
	err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	again, merr := mountCgroups(moves)
	if err = errors.Join(err, merr); err != nil {
		return "", err
	}
	defer again.Close()
	if err := unix.MoveMount(int(again.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", err
	}
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	return string(b), err
}
