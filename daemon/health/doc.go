// Package health follows the health of GPUs: XID errors, readings of sensors and counters, resets. It closes GPUs to new leases and
// opens them again as package health at the top decides. It resets no GPU, boots no node, and stops no lease.
package health
