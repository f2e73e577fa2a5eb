// Package account keeps the account of what leases used: it takes what is measured, writes it, answers queries, and finds idle
// leases. It measures nothing; it stops a lease only by the way that every lease is stopped.
package account
