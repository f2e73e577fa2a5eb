package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// The widths between which tables adapt to the terminal.
const (
	narrowest = 80
	widest    = 200
)

// columnsOf is the width of a terminal, at least narrowest and at most widest; 0 where the output is no terminal. Then no table
// is made to fit, so that what programs read does not depend on a window.
func columnsOf(out any) int {
	n := 0
	switch w := behind(out).(type) {
	case interface{ Columns() int }:
		n = w.Columns()
	case *os.File:
		if c, _, err := term.GetSize(int(w.Fd())); err == nil {
			n = c
		}
	}
	if n == 0 {
		return 0
	}
	return min(max(n, narrowest), widest)
}

// column is one column of a table that fits a width.
type column struct {
	head string
	min  int // the fewest characters to which it is cut; 0: it is never cut
	want int // it gets this many characters before the others get more
	// drop is the order in which columns are left out where all are cut and it is still too wide; 0: never.
	drop   int
	middle bool // it is cut in its middle, because both of its ends distinguish
}

// line is one row, and a note at its end. A note that does not fit there is written below it.
type line struct {
	cells []string
	note  string
}

// gap is between two columns.
const gap = 2

// fit prints rows within a width; with width 0 they are as wide as they need. Cells under STATE are coloured by their state.
func (a *app) fit(width int, columns []column, rows []line) {
	for i := range rows {
		for j := range rows[i].cells {
			rows[i].cells[j] = printable(rows[i].cells[j])
		}
		rows[i].note = printable(rows[i].note)
	}
	shown, widths := layout(width, columns, rows)
	write := func(cells []string, paint bool) int {
		var b strings.Builder
		at := 0
		for i, c := range shown {
			cell := cut(cells[c], widths[i], columns[c].middle)
			if cell != "" {
				at = pad(&b, at, offset(widths, i))
				at += utf8.RuneCountInString(cell)
				if paint && columns[c].head == "STATE" {
					cell = a.state(cell)
				}
				b.WriteString(cell)
			}
		}
		fmt.Fprint(a.io.Out, b.String())
		return at
	}
	heads := make([]string, len(columns))
	for i := range columns {
		heads[i] = columns[i].head
	}
	write(heads, false)
	fmt.Fprintln(a.io.Out)
	for i := range rows {
		at := write(rows[i].cells, true)
		a.note(width, at, offset(widths, len(widths)), rows[i].note)
	}
}

// note ends a line with its note, or writes the note below it.
func (a *app) note(width, at, from int, note string) {
	if width > 0 && from+utf8.RuneCountInString(note) > width {
		from = at + gap // The last cells of the row may be empty.
	}
	switch {
	case note == "":
		fmt.Fprintln(a.io.Out)
	case width == 0 || from+utf8.RuneCountInString(note) <= width:
		var b strings.Builder
		pad(&b, at, from)
		fmt.Fprintln(a.io.Out, b.String()+note)
	default:
		fmt.Fprintln(a.io.Out)
		for _, l := range wrap(note, width-4) {
			fmt.Fprintln(a.io.Out, "    "+l)
		}
	}
}

func pad(b *strings.Builder, at, to int) int {
	b.WriteString(strings.Repeat(" ", max(0, to-at)))
	return max(at, to)
}

// offset is where a column begins.
func offset(widths []int, column int) int {
	at := 0
	for _, w := range widths[:column] {
		at += w + gap
	}
	return at
}

// layout selects the columns that are shown, and their widths.
func layout(width int, columns []column, rows []line) (shown, widths []int) {
	natural := make([]int, len(columns))
	for i := range columns {
		for _, r := range rows {
			natural[i] = max(natural[i], utf8.RuneCountInString(r.cells[i]))
		}
		if natural[i] > 0 { // A column without values is not shown.
			natural[i] = max(natural[i], utf8.RuneCountInString(columns[i].head))
			shown = append(shown, i)
		}
	}
	least := func(c int) int {
		if m := max(columns[c].min, utf8.RuneCountInString(columns[c].head)); columns[c].min > 0 && m < natural[c] {
			return m
		}
		return natural[c]
	}
	total := func(of func(int) int) int {
		n := gap * (len(shown) - 1)
		for _, c := range shown {
			n += of(c)
		}
		return n
	}
	for width > 0 && total(least) > width {
		next := -1
		for _, c := range shown {
			if d := columns[c].drop; d > 0 && (next < 0 || d < columns[next].drop) {
				next = c
			}
		}
		if next < 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(c int) bool { return c == next })
	}
	for _, c := range shown {
		if width == 0 {
			widths = append(widths, natural[c])
		} else {
			widths = append(widths, least(c))
		}
	}
	if width > 0 {
		stretch(widths, shown, columns, natural, width-total(least))
	}
	return shown, widths
}

// stretch gives columns that are cut what is left of the line: first what each wants, then each the same part of the rest.
func stretch(widths, shown []int, columns []column, natural []int, spare int) {
	for i, c := range shown {
		if more := min(spare, min(columns[c].want, natural[c])-widths[i]); more > 0 {
			widths[i] += more
			spare -= more
		}
	}
	for more := true; more && spare > 0; {
		more = false
		for i, c := range shown {
			if widths[i] < natural[c] && spare > 0 {
				widths[i]++
				spare--
				more = true
			}
		}
	}
}

// cut shortens a text to a number of characters.
func cut(s string, n int, middle bool) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	if n < 1 {
		return ""
	}
	if middle && n > 2 {
		tail := (n - 1) / 2
		return string(r[:n-1-tail]) + "…" + string(r[len(r)-tail:])
	}
	return strings.TrimRight(string(r[:n-1]), " ") + "…"
}

// wrap breaks a text between words into lines of at most n characters. A longer word has a line of its own.
func wrap(s string, n int) []string {
	var out []string
	at := ""
	for _, word := range strings.Fields(s) {
		if at != "" && utf8.RuneCountInString(at)+1+utf8.RuneCountInString(word) > n {
			out, at = append(out, at), ""
		}
		if at != "" {
			at += " "
		}
		at += word
	}
	return append(out, at)
}
