// Package enumeration decides how much of a test runs: which part of a large enumeration (every fault, every kill, every state), and
// whether a test that takes long runs at all.
//
//	make quick, make test   samples, and no test that takes long; 'make test' names what it leaves
//	make test-race          samples, because the detector is five to ten times slower, and the tests that take long
//	make test-whole         what 'make test' leaves: all cases, and the tests that take long
//	make test-faults        what takes hours whole
//	go test                 everything
//
// The cases of an enumeration repeat the same code, so a sample finds the races.
//
// In the environment, ENUMERATION=sampled asks for what 'make test' runs, ENUMERATION=1/12 for a twelfth of what is enumerated whole
// otherwise. SAMPLE is a number that selects which cases run: with the next number others do, until all had their turn. Without it the
// first ones run. A number and a part repeat the same cases.
package enumeration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Left is why a test that takes long was skipped.
const Left = "it takes long: 'make test-whole' runs it"

// Long skips a test that takes longer than five seconds in 'make test' on two cores. It is the first statement of the test, so that
// a reader of the test sees it, and what lists them (package suite).
func Long(t testing.TB) {
	t.Helper()
	if brief() {
		t.Skip(Left)
	}
}

func brief() bool { return testing.Short() || os.Getenv("ENUMERATION") == "sampled" }

// Sampled reports whether tests run a sample.
func Sampled() bool { return raceDetector || brief() }

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
