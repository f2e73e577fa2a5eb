package procfs

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// mostNamespaces is how deep the kernel lets user namespaces be (user_namespaces(7)).
const mostNamespaces = 32

// InNamespaceOf reports whether a process is in a user namespace of a user, at any depth: as one of a container without root, whose
// processes have further ids of its user. No process of another user gets there, but for root.
func InNamespaceOf(pid int, uid uint32) bool {
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
	if err != nil {
		return false
	}
	defer func() { ns.Close() }()
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return false
	}
	for range mostNamespaces + 1 {
		if is, err := ns.Stat(); err != nil || os.SameFile(is, own) {
			return false // What is in the namespace of this process has the ids of its user.
		}
		if owner, err := unix.IoctlGetUint32(int(ns.Fd()), unix.NS_GET_OWNER_UID); err != nil {
			return false
		} else if owner == uid {
			return true
		}
		parent, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_PARENT)
		if err != nil {
			return false
		}
		ns.Close()
		ns = os.NewFile(uintptr(parent), "user namespace")
	}
	return false
}
