// Package faultpoint names the places in the program at which a test may kill it, and kills it there.
//
// In what is shipped, Hit does nothing: only binaries built with -tags faultpoint listen to GPUSHARE_FAULT. It injects no
// errors; those come from the seams of each package.
package faultpoint
