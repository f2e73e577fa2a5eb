package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/gpushare/gpushare/api"
)

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.io.Out)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil && a.out.failed() == nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil // The error of the output is that of the command.
}

func isTerminal(w io.Writer) bool {
	f, ok := behind(w).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// table prints rows in columns as wide as their widest cell. The first row is the header. Cells under STATE are
// coloured by their state.
func (a *app) table(rows [][]string) {
	widths := []int{}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for n, row := range rows {
		var b strings.Builder
		end := len(row) // Empty cells at the end need no padding before them.
		for end > 0 && row[end-1] == "" {
			end--
		}
		for i, cell := range row[:end] {
			if n > 0 && rows[0][i] == "STATE" {
				b.WriteString(a.state(cell))
			} else {
				b.WriteString(cell)
			}
			if i < end-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		fmt.Fprintln(a.io.Out, b.String())
	}
}

// printable removes what could control the reader's terminal: a tenant's command name may contain escape sequences, line
// breaks and marks that change the direction of writing.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return '\ufffd'
		}
		return r
	}, s)
}

// sentence is printable text that may have several lines.
func sentence(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(strings.ReplaceAll(lines[i], "\t", "  "))
	}
	return strings.Join(lines, "\n")
}

func memory(m api.GPUMemory) string { return gib(m.Used) + " / " + gib(m.Total) }

func gib(n uint64) string { return api.Bytes(n).Short() }

func percent(f float64) string { return fmt.Sprintf("%.0f%%", f) }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// shortUUID keeps the part that distinguishes GPUs.
func shortUUID(s string) string {
	kind, rest, ok := strings.Cut(s, "-")
	if !ok || len(rest) < 8 {
		return s
	}
	return kind + "-" + rest[:8]
}
