package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoLandlock: this kernel has no Landlock, or it was not enabled at boot.
var ErrNoLandlock = errors.New("this kernel does not have Landlock")

// Files are the directories and files that a process may use with everything below them. The zero value has none.
type Files struct {
	Read  []string // read, and execute
	Write []string // everything
}

const (
	readRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	ofFiles    = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	firstRights = 1<<13 - 1 // of version 1
)

// rights returns the rights to files that a version of Landlock knows.
func rights(version int) uint64 {
	r := uint64(firstRights)
	if version >= 2 {
		r |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		r |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 5 {
		r |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return r
}

// LandlockVersion is the version of Landlock in this kernel; 0 if it has none.
func LandlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// Options of a Landlock domain besides files.
type Options struct {
	// Alone also takes TCP, and signals and abstract sockets of processes outside of the domain, as far as the kernel's version can.
	Alone bool
}

// LandlockProcess confines all threads of this process. It needs a program without cgo: LandlockThread is for others.
func LandlockProcess(f Files, o Options) (version int, err error) {
	return landlock(f, o, func(ruleset int) error {
		if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
			return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", errno)
		}
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0)
		if errno != 0 {
			return os.NewSyscallError("landlock_restrict_self", errno)
		}
		return nil
	})
}

// LandlockThread confines the thread that calls it, which must be locked: a program that it executes has the domain in all threads.
func LandlockThread(f Files, o Options) (version int, err error) {
	return landlock(f, o, func(ruleset int) error {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); errno != 0 {
			return os.NewSyscallError("landlock_restrict_self", errno)
		}
		return nil
	})
}

func landlock(f Files, o Options, restrict func(ruleset int) error) (version int, err error) {
	if version = LandlockVersion(); version == 0 {
		return 0, ErrNoLandlock
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: rights(version)}
	if o.Alone && version >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if o.Alone && version >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	// A kernel accepts fields that it does not know if they are zero.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return version, os.NewSyscallError("landlock_create_ruleset", errno)
	}
	ruleset := int(fd)
	defer unix.Close(ruleset)
	for _, p := range f.Read {
		if err := addPath(ruleset, p, readRights); err != nil {
			return version, err
		}
	}
	for _, p := range f.Write {
		if err := addPath(ruleset, p, attr.Handled_access_fs); err != nil {
			return version, err
		}
	}
	if err := restrict(ruleset); err != nil {
		return version, fmt.Errorf("cannot apply Landlock: %w", err)
	}
	return version, nil
}

// addPath allows rights below a path. One that does not exist is left out.
func addPath(ruleset int, path string, allowed uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot allow %s: %w", path, os.NewSyscallError("open", err))
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("cannot allow %s: %w", path, os.NewSyscallError("fstat", err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		allowed &= ofFiles
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: allowed, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(
		unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0,
	)
	runtime.KeepAlive(&rule)
	if errno != 0 {
		return fmt.Errorf("cannot allow %s: %w", path, os.NewSyscallError("landlock_add_rule", errno))
	}
	return nil
}
