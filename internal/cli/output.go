package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/gpushare/gpushare/api"
)

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.io.Out)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// table prints rows in columns as wide as their widest cell. The first row is the header.
func (a *app) table(rows [][]string) {
	widths := []int{}
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		fmt.Fprintln(a.io.Out, strings.TrimRight(b.String(), " "))
	}
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

// shortUUID keeps what tells GPUs apart at a glance.
func shortUUID(s string) string {
	kind, rest, ok := strings.Cut(s, "-")
	if !ok || len(rest) < 8 {
		return s
	}
	return kind + "-" + rest[:8]
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if base, ok := strings.CutSuffix(one, "s"); ok {
		return fmt.Sprintf("%d %sses", n, base)
	}
	return fmt.Sprintf("%d %ss", n, one)
}
