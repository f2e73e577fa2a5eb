// Package escape finds and ends processes that left their lease, and reports those of no lease.
package escape
