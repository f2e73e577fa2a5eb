// Package health decides from XID errors and from readings whether a GPU takes new leases, and what an administrator should
// know of it. It reads no GPU, resets none, and has no clock.
package health
