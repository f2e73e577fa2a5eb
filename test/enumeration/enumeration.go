// Package enumeration decides which part of a large enumeration (every fault, every kill, every state) a test runs: all
// cases, or a sample with -short or the race detector, which is five to ten times slower. The full enumeration runs in
// 'make test' or 'make test-faults' without the race detector: its cases repeat the same code, so a sample finds the races.
// With ENUMERATION=sampled in the environment it is a sample too: the second run of all tests, as another user.
package enumeration

import (
	"os"
	"testing"
)

// Sampled reports whether tests run a sample.
func Sampled() bool {
	return raceDetector || testing.Short() || os.Getenv("ENUMERATION") == "sampled"
}

// Stride is the distance between two cases that run: 1, or sample.
func Stride(sample int) int {
	if Sampled() {
		return sample
	}
	return 1
}
