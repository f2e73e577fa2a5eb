// Package faultpoint names the places in the program where a test may kill it, and kills it there.
//
// In released builds Hit does nothing: only binaries built with -tags faultpoint read GPUSHARE_FAULT. It injects no errors;
// tests of each package do that.
package faultpoint
