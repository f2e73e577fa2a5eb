// Package maintenance takes the node out of service for an administrator: no new lease, and on request no use of the driver, so
// that it can be replaced. It stops no lease.
package maintenance
