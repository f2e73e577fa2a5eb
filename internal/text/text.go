// Package text writes amounts for people. Nothing that it writes is read back: that is the spec's way of writing them,
// which package api has.
package text

import (
	"math"
	"strconv"
	"strings"
)

// Bytes is an amount of memory with at most one decimal: "29.5 GiB".
func Bytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i, f := 0, float64(n)
	for f >= 1024 && i < len(units)-1 {
		i, f = i+1, f/1024
	}
	return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) + " " + units[i]
}

// Count says how many there are: "1 process", "2 processes".
func Count(n int, one string) string { return strconv.Itoa(n) + " " + Plural(n, one) }

// Plural is the word for so many of them, without the number.
func Plural(n int, one string) string {
	if n == 1 {
		return one
	}
	for _, sibilant := range []string{"s", "x", "ch", "sh"} {
		if strings.HasSuffix(one, sibilant) {
			return one + "es"
		}
	}
	return one + "s"
}
