// Package attribution finds the lease of a pid, and the processes that use a device, an instance or a slice. It stops
// no process.
package attribution
