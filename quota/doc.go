// Package quota decides which leases may run on a shared GPU now, and what happens to leases that use more GPU memory than
// granted.
//
// It is pure: every call gets the time, randomness is injected, and the results are actions that the caller carries out and
// reports back. It does not freeze, signal or measure anything itself, and does not know cgroups or the driver.
package quota
