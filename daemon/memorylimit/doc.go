// Package memorylimit keeps the driver's limits of GPU memory (R615): one on the slice of each grant and one on the cgroup of
// each lease. It sets a limit, reads it back and remembers only what was read back. What happens to a lease above a limit
// that the driver does not enforce is decided elsewhere.
package memorylimit
