// Package descent keeps a record of which processes descend from those of a lease, in the kernel.
//
// The record is a cgroup v1 hierarchy without controllers (cgroups(7), "named hierarchies"), with one cgroup for each lease. A
// process starts in the cgroups of the one that forks it, in every hierarchy. It stays there, whatever its parent, its session
// or its place in the hierarchy of the service manager become, and only root can move it. The record has no effect on a
// process, it is complete at each moment, and it outlives the daemon.
//
// The process connector is no substitute: it names the parent of a new process (drivers/connector/cn_proc.c,
// proc_fork_connector), and with CLONE_PARENT that is not the process that forked.
package descent
