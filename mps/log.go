package mps

import (
	"context"
	"strings"
)

// MaxLogLines is how many lines of a log can be read at once.
const MaxLogLines = 1000

// LastLines returns at most n of the last lines that the control daemon of a GPU and its servers wrote, as text.
func (s *Supervisor) LastLines(ctx context.Context, id Device, n int) []string {
	lines := s.Units.LastLines(ctx, UnitName(id), min(n, MaxLogLines))
	for i := range lines {
		lines[i] = strings.TrimSpace(strings.Map(printable, lines[i]))
	}
	return lines
}
