// Package enumeration decides which part of a large enumeration (every fault, every kill, every state) a test runs: all
// cases, or a sample with -short or the race detector, which is five to ten times slower. The full enumeration runs in
// 'make test' or 'make test-faults' without the race detector: its cases repeat the same code, so a sample finds the races.
//
// In the environment, ENUMERATION=sampled asks for the sample: the second run of all tests, as another user. ENUMERATION=1/12 asks for
// a twelfth of what is enumerated whole otherwise. SAMPLE is a number that selects which cases run: with the next number others do,
// until all had their turn. Without it the first ones run. A number and a part repeat the same cases.
package enumeration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Sampled reports whether tests run a sample.
func Sampled() bool {
	return raceDetector || testing.Short() || os.Getenv("ENUMERATION") == "sampled"
}

// Raced reports whether the race detector runs. A simulation of one goroutine is slow with it, and shows nothing that it does not show
// without: there it runs one of its seeds, in every other run all of them.
func Raced() bool { return raceDetector }

// Stride is the distance between two cases that run: 1, or sample.
func Stride(sample int) int {
	if Sampled() {
		return sample
	}
	return 1
}

// Runs reports whether a case runs, counted from 0: all, or one of each sample, or a part.
func Runs(i, sample int) bool {
	if Sampled() {
		return i%sample == number()%sample
	}
	first, stride := Part("")
	return i%stride == first
}

// Part returns the first case of a list that runs, counted from 0, and the distance to the next one: 0 and 1 if all run. Lists of
// different names have different cases.
func Part(name string) (first, stride int) {
	text, ok := strings.CutPrefix(os.Getenv("ENUMERATION"), "1/")
	if !ok {
		return 0, 1
	}
	stride, err := strconv.Atoi(text)
	if err != nil || stride < 1 {
		panic(fmt.Sprintf("ENUMERATION=1/%s: want 1/2, 1/12, …", text))
	}
	at := number()
	for _, b := range []byte(name) {
		at += int(b)
	}
	return at % stride, stride
}

// number is SAMPLE.
func number() int {
	text := os.Getenv("SAMPLE")
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		panic(fmt.Sprintf("SAMPLE=%s: want a number", text))
	}
	return n
}
