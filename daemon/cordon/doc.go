// Package cordon closes GPUs to new leases for an administrator, whatever the spec says. It stops no lease.
package cordon
