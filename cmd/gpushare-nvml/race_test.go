//go:build cgo && race

package main

// raceFlags build the worker as the test is built.
var raceFlags = []string{"-race"}
