// Package leases starts, stops and recovers leases: run, attach, detached commands, stop, recovery after a restart.
// Package lease decides where a lease is placed.
package leases
