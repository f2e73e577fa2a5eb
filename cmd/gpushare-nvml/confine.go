//go:build cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/sandbox"
)

// The library belongs to the vendor, and starts a program of the vendor that makes device nodes. So what is taken is what neither of
// them needs: everything else is allowed.

// changed are the directories below which the library and that program write: device nodes, /proc/driver/nvidia, sockets, logs.
func changed(hostRoot string) []string {
	dirs := []string{"/dev", "/proc", "/run", "/var/run", "/var/log", "/tmp", "/var/tmp"}
	if hostRoot != "" && hostRoot != "/" {
		dirs = append(dirs, hostRoot) // of a virtual node
	}
	return dirs
}

// restrictFiles executes this program again with its files restricted: of a program with cgo that is the only way to reach all of its
// threads. It returns only if that is not possible.
func restrictFiles(hostRoot string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program: %w", err)
	}
	runtime.LockOSThread() // It stays locked: after an error this thread, and it alone, may be restricted.
	if _, err := sandbox.LandlockThread(sandbox.Files{Read: []string{"/"}, Write: changed(hostRoot)}, sandbox.Options{}); err != nil &&
		!errors.Is(err, sandbox.ErrNoLandlock) {
		return err
	} else if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	return os.NewSyscallError("exec", unix.Exec(self, append([]string{os.Args[0], "--confined"}, os.Args[1:]...), os.Environ()))
}

// calls is the filter of the worker once the driver is open. The kernel's modules are loaded then; a driver that is loaded again has
// another worker.
func calls() *sandbox.Filter {
	f := &sandbox.Filter{Never: []sandbox.Call{{Number: unix.SYS_SOCKET, Arg: 0, Mask: 0xffffffff, Value: unix.AF_UNIX, Other: true}}}
	for _, n := range []uintptr{
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT,
		unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_MOUNT_SETATTR, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_OPEN_BY_HANDLE_AT,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT,
		unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
		unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_SETTIMEOFDAY, unix.SYS_ADJTIMEX,
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	} {
		f.Never = append(f.Never, sandbox.Call{Number: n})
	}
	return f
}
