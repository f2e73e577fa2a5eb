package mps

import (
	"context"
	"slices"
	"strings"
	"time"
)

const (
	wordsTimeout = 3 * time.Second // for the last lines of a program that has ended
	wordsLines   = 3
	maxWords     = 300 // bytes
)

// describeEnd describes how a control daemon ended: its result, the meaning of known exit codes, and its own last words. A daemon
// that was killed said nothing about it.
func (s *Supervisor) describeEnd(ctx context.Context, unit, result string) string {
	out := result
	switch {
	case result == "":
		out = "ended immediately"
	case result == "exited with 100":
		out = "found no usable GPU (it exited with 100)"
	case result == "exited with 244":
		out = "found no CUDA driver library (it exited with 244)"
	case strings.HasPrefix(result, "killed by"):
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, wordsTimeout)
	defer cancel()
	if words := lastWords(s.Units.LastLines(ctx, unit, wordsLines)); words != "" {
		out += `; it said "` + words + `"`
	}
	return out
}

// lastWords joins the last lines of an output, without the time and source before each line of the log.
func lastWords(lines []string) string {
	var out []string
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, "["); ok {
			if _, message, ok := strings.Cut(rest, "] "); ok {
				line = message
			}
		}
		line = strings.TrimSpace(strings.Map(printable, line))
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

// printable removes what is not text: the program writes zero bytes, and what it says may repeat what a tenant sent.
func printable(r rune) rune {
	if r < ' ' || r == 0x7f || r == '�' {
		return ' '
	}
	return r
}
