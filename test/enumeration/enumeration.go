// Package enumeration says how much of a large enumeration a test goes through: every fault, every kill, every state. It is
// all of it, but a sample with the race detector, under which the same takes five to ten times as long, and where time is
// short. What is sampled runs whole in 'make test' or in 'make test-faults', without the race detector: it runs the same
// code over and over, in which one pass finds the races.
package enumeration

import "testing"

// Sampled tells whether a sample has to do.
func Sampled() bool { return raceDetector || testing.Short() }

// Stride is the way from one case to the next: 1, or the sample's.
func Stride(sample int) int {
	if Sampled() {
		return sample
	}
	return 1
}
