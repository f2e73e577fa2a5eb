package cli_test

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// The columns of times are there where they fit, and no line is wider than the terminal: those that say least are left out first.
func TestTimesOfLeasesFitTheTerminal(t *testing.T) {
	for columns, heads := range map[int][]string{
		80: {"LEASE", "STATE", "USER", "IDLE"}, 120: {"ELAPSED", "LIMIT", "IDLE"}, 200: {"STARTED", "ELAPSED", "LIMIT", "IDLE", "SHARE", "PID", "COMMAND"},
	} {
		r := onScreen(t, routes{"GET /v1/status": timesNode()}, columns, "lease list")
		head, _, _ := strings.Cut(r.out, "\n")
		for _, h := range heads {
			if !strings.Contains(head, h) {
				t.Errorf("in %d columns %s is missing: %s", columns, h, head)
			}
		}
		for line := range strings.Lines(r.out) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > columns {
				t.Errorf("in %d columns a line has %d: %s", columns, n, line)
			}
		}
	}
}
