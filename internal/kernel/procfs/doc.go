// Package procfs reads the state of one process from the kernel: start time, state, parent, command and cgroup. It opens
// pidfds, so that a signal never reaches another process with a reused pid.
//
// It knows nothing of leases, tenants or managed process trees, and it writes nothing.
package procfs
