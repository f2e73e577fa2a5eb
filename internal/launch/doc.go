// Package launch starts a program for somebody who does not stay: gpushare run --detach. It is what the daemon and the
// small program gpushare-start say to each other.
//
// gpushare-start waits, inside the lease's walls and before anything of the tenant's runs, for the word of the daemon on
// its standard input. It then takes over whose program it is (user, groups, limits, folder, umask) and becomes it. The
// daemon hears at once when that is not possible: the connection closes when the program runs, or carries the reason.
//
// Where a service manager starts gpushare-start, that keeps the output and the exit code. Elsewhere a keeper does: the
// same small program as the parent of the other, outside the walls, which writes the output to files of bounded size and
// the end to a record. Both outlive the daemon.
package launch
