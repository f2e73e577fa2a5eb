//go:build race

package enumeration

const raceDetector = true
