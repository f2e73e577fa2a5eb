// Package power plans, sets and restores the power limits of GPUs. The driver's limit is the only state on the hardware; the limit
// from before is on disk, because the driver does not know it.
//
// It decides no cap: the spec does.
package power
