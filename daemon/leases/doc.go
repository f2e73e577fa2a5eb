// Package leases brings leases to life and to their end: run, attach, detached commands, stop, recovery after a restart.
// Who gets a place is decided in package lease.
package leases
