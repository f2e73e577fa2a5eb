// Package descent keeps a record of which processes descend from those of a lease, in the kernel.
//
// Two BPF programs run at the tracepoints of a fork and of an exit. A process that one of a lease forks is recorded for the lease before
// it runs, whatever its parent, its session, its cgroup or its namespaces are or become; the record of a process ends when its last
// thread does. The forking process is the one that runs the program: with CLONE_PARENT the parent of the new one is another. There is no
// queue of events that could overflow: a process is recorded or, when the record is full, counted as lost.
//
// Other programs of the host see nothing of it: no hierarchy of cgroups, no mount, no file of /proc changes. The programs and the
// record are pinned in the BPF file system of the host, where it has one, and outlive the daemon there.
//
// The process connector is no substitute: it names the parent of a new process (drivers/connector/cn_proc.c,
// proc_fork_connector), not the process that forked, and its messages are dropped when they come too fast.
package descent
