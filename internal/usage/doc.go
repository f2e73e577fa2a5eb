// Package usage is the account of what leases used: GPU time, GPU memory, waits and exit codes. It adds up what is reported to
// it, in whole units; it measures nothing and decides nothing.
package usage
