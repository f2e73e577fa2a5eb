// Package daemon is the composition: settings, the converge loop, changes, the HTTP server with its access table,
// leases brought to life, quotas carried out, status and health.
//
// It wires what the other packages decide to what they act on. Placement, planning, scheduling and parsing are theirs.
package daemon
