package mps

import (
	"slices"
	"strings"
)

// MaxLogLines is how many lines of a log can be read at once.
const MaxLogLines = 1000

const maxWords = 300 // bytes

// LastWords joins the last lines of an output, without the time and source before each line of the log.
func LastWords(lines []string) string {
	var out []string
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, "["); ok {
			if _, message, ok := strings.Cut(rest, "] "); ok {
				line = message
			}
		}
		line = strings.TrimSpace(strings.Map(Printable, line))
		if line != "" {
			out = append(out, line)
		}
	}
	words := strings.Join(slices.Compact(out), " / ")
	if len(words) > maxWords {
		words = "…" + strings.ToValidUTF8(words[len(words)-maxWords:], "")
	}
	return words
}

// Printable removes what is not text: the program writes zero bytes, and what it says may repeat what a tenant sent.
func Printable(r rune) rune {
	if r < ' ' || r == 0x7f || r == '�' {
		return ' '
	}
	return r
}
