package control

import (
	"context"
	"strings"
	"time"

	"github.com/gpushare/gpushare/mps"
)

const (
	wordsTimeout = 3 * time.Second // for the last lines of a program that has ended
	wordsLines   = 3
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
	if words := mps.LastWords(s.Units.LastLines(ctx, unit, wordsLines)); words != "" {
		out += `; it said "` + words + `"`
	}
	return out
}
