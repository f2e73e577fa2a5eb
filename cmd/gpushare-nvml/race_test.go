//go:build cgo && race

package main

// raceFlags are the build flags of the worker, the same as of the test.
var raceFlags = []string{"-race"}
