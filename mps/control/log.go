package control

import (
	"context"
	"strings"

	"github.com/gpushare/gpushare/mps"
)

// LastLines returns at most n of the last lines that the control daemon of a GPU and its servers wrote, as text.
func (s *Supervisor) LastLines(ctx context.Context, id mps.Device, n int) []string {
	lines := s.Units.LastLines(ctx, mps.UnitName(id), min(n, mps.MaxLogLines))
	for i := range lines {
		lines[i] = strings.TrimSpace(strings.Map(mps.Printable, lines[i]))
	}
	return lines
}
