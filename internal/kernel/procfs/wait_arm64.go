package procfs

import "golang.org/x/sys/unix"

// ownPathCalls are calls that only this architecture has, or that have another name on it.
var ownPathCalls = map[int]call{unix.SYS_FSTATAT: {"fstatat", 1}, unix.SYS_RENAMEAT: {"renameat", 1}}
