// Package text formats amounts for people. The format of the spec, which is read back, is in package api.
package text

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
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

// Count is a number with its noun: "1 process", "2 processes".
func Count(n int, one string) string { return strconv.Itoa(n) + " " + Plural(n, one) }

// Plural is the noun for n things, without the number.
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

// Short returns a text with at most that many bytes. What is cut ends with an ellipsis.
func Short(s string, most int) string {
	const end = "…"
	if len(s) <= most {
		return s
	}
	return UpTo(s, most-len(end)) + end
}

// UpTo returns a copy of the first n bytes of a string, without a part of a character.
func UpTo(s string, n int) string {
	n = max(0, min(n, len(s)))
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) // A part of a string keeps the whole in memory.
}
