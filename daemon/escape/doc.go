// Package escape finds and kills processes that left their lease, and reports or stops processes that use a managed GPU
// without a lease.
package escape
