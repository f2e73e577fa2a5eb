package boundedread

// Limits of what is read of each kind of file. They are far above what such a file has without an attack, and small enough that
// the daemon stays in its memory limit while it reads a few of them at once.
const (
	Command     = 4 << 10   // /proc/PID/cmdline: what tables and messages show of it
	Environment = 128 << 10 // /proc/PID/environ: as much as one entry may have (MAX_ARG_STRLEN)
	Process     = 64 << 10  // other files of /proc/PID. Only the groups in status grow, and come after what is needed of it
	Status      = 1 << 20   // the whole of /proc/PID/status: 65536 groups (NGROUPS_MAX) of up to 11 bytes
	Value       = 64 << 10  // one file of sysfs, cgroupfs or /proc/sys
	Table       = 1 << 20   // one of the driver in /proc: a line for each device
	Mounts      = 4 << 20   // /proc/self/mountinfo: users add to its end, with FUSE
	IDs         = 8 << 20   // cgroup.procs, cgroup.threads, children: more processes than a host has
	Record      = 64 << 20  // a file that the daemon has written itself, or the host's list of users
	Settings    = 4 << 20   // a file that an administrator writes

	// Names is how many entries of a directory are listed: kernel.pid_max is at most 4 Mi, and 64-bit kernels allow no more processes.
	Names = 4 << 20
	// Files is how many entries are listed of a directory that only the daemon or an administrator fills.
	Files = 64 << 10
)
