// Package launch starts detached programs (gpushare run --detach). It has both sides of the protocol between the daemon and
// the program gpushare-start.
//
// gpushare-start runs inside the lease's isolation, before anything of the tenant. It waits on its standard input for the
// daemon's message, takes the user's credentials (user, groups, limits, directory, umask) and executes the program. When
// that fails, the daemon learns it at once: the connection closes when the program runs, or carries the reason.
//
// Where a service manager starts gpushare-start, the service manager keeps the output and the exit code. Elsewhere a
// supervisor process does: gpushare-start as the parent, in a cgroup of the lease next to that of its processes, writes the
// output to files of bounded size and the result to a record. Both outlive the daemon. A supervisor ends with the last process
// of its lease, also while other processes have the output open, and the daemon ends one that does not.
package launch
