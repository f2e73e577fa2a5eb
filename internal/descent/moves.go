package descent

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Each move of a process into a cgroup waits until every processor has switched tasks (an RCU grace period): with many programs
// that compute that takes up to 0.3 s, twice for a run. With the option favordynmods of any hierarchy (Linux 6.0) no move on
// the host waits, and each fork and exit takes an atomic operation more (cgroup-v2, "Mounting"; kernel/cgroup/cgroup.c,
// cgroup_favor_dynmods). Since 6.18 moves stay quick until the next boot, also without the mount: the kernel says so in its log.
const (
	moves        = "gpushare-moves" // a hierarchy without a cgroup: an option counts only when a hierarchy is created
	quickOption  = "favordynmods"
	mountedFlags = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
)

// quickenMoves lets moves not wait while its mount is open; nil: another mount does that already. The service cannot mount,
// its unit run-gpushare-moves.mount does.
func quickenMoves(mountinfo string) (*os.File, error) {
	if areQuick(mountinfo) {
		return nil, nil
	}
	f, err := mountCgroups(moves, quickOption)
	if err != nil {
		return nil, fmt.Errorf("moves into cgroups wait for all processors: %w", err)
	}
	return f, nil
}

// areQuick reports whether a mount has the option.
func areQuick(mountinfo string) bool {
	for line := range strings.Lines(mountinfo) {
		_, after, _ := strings.Cut(line, " - ")
		kind := strings.Fields(after)
		if len(kind) < 3 || !strings.HasPrefix(kind[0], "cgroup") {
			continue
		}
		for option := range strings.SplitSeq(kind[2], ",") {
			if option == quickOption {
				return true
			}
		}
	}
	return false
}

// mountCgroups mounts a hierarchy without controllers at no path: no other process sees the mount, and it ends with the process. The
// hierarchy itself lasts while it has a cgroup.
func mountCgroups(name string, options ...string) (*os.File, error) {
	config, err := unix.Fsopen("cgroup", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open the file system: %w", err)
	}
	defer unix.Close(config)
	for _, option := range append([]string{"none"}, options...) {
		err = errors.Join(err, unix.FsconfigSetFlag(config, option))
	}
	if err = errors.Join(err, unix.FsconfigSetString(config, "name", name)); err == nil {
		err = unix.FsconfigCreate(config)
	}
	if err != nil {
		return nil, fmt.Errorf("mount it: %w", err)
	}
	fd, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, mountedFlags)
	if err != nil {
		return nil, fmt.Errorf("mount it: %w", err)
	}
	return os.NewFile(uintptr(fd), "cgroups "+name), nil
}
