// Package procfs reads what the kernel says of one process: its start time, state, parent, command and cgroup, and
// holds a process by a descriptor so that a signal never reaches a stranger who got its pid.
//
// It is no process library: it knows nothing of leases, tenants or trees that are ours, and it writes nothing.
package procfs
