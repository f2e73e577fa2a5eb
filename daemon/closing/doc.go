// Package closing has the one list of why places take no lease: the node, a GPU, a MIG instance, for all tenants or for one. Each
// closer closes and opens places with a kind of its own, and the lease table, the status and the refusals read all of them. The
// package closes nothing by itself and has no clock.
package closing
