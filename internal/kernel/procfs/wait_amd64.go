package procfs

import "golang.org/x/sys/unix"

// ownPathCalls are calls that only this architecture has, or that have another name on it.
var ownPathCalls = map[int]call{
	unix.SYS_NEWFSTATAT: {
		"newfstatat",
		1,
	},
	unix.SYS_RENAMEAT: {"renameat", 1},
	unix.SYS_OPEN:     {"open", 0},
	unix.SYS_CREAT:    {"creat", 0},
	unix.SYS_STAT:     {"stat", 0},
	unix.SYS_LSTAT: {
		"lstat",
		0,
	},
	unix.SYS_ACCESS:   {"access", 0},
	unix.SYS_READLINK: {"readlink", 0},
	unix.SYS_UNLINK:   {"unlink", 0},
	unix.SYS_MKDIR:    {"mkdir", 0},
	unix.SYS_RMDIR:    {"rmdir", 0},
	unix.SYS_RENAME:   {"rename", 0},
	unix.SYS_CHMOD:    {"chmod", 0},
	unix.SYS_CHOWN:    {"chown", 0},
}
