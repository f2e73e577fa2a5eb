package cli

import (
	"fmt"

	"github.com/gpushare/gpushare/internal/text"
)

// Bounds of what is shown of a host: what it answers is not trusted.
const (
	mostHostRows  = 1000
	mostHostText  = 300 // characters of a cell, a reason or a hint
	mostHostNotes = 5   // lines below the table
)

// hostTable is one table of what hosts answered, with lines above and below it.
type hostTable struct {
	head, notes, tail []string
	columns           []column
	rows              []line
	wide              bool   // nothing is cut
	prefix            string // is before a note
	code              int    // with --exit-code
}

func newHostTable(columns ...column) *hostTable {
	return &hostTable{columns: append([]column{{head: "HOST", min: 8, want: 24, middle: true}}, columns...)}
}

// add adds a row of a host, and says when there are too many.
func (t *hostTable) add(host string, n int, cells []string, note string) {
	switch {
	case n == mostHostRows:
		t.notes = append(t.notes, fmt.Sprintf("%s: only %d rows of it are shown", host, mostHostRows))
		return
	case n > mostHostRows:
		return
	}
	for i := range cells {
		cells[i] = brief(cells[i])
	}
	t.rows = append(t.rows, line{append([]string{host}, cells...), brief(note)})
}

// note adds what is to be known of a host, and says how much more there is.
func (t *hostTable) note(host string, all []string) {
	for i, n := range all {
		if i == mostHostNotes && len(all) > mostHostNotes+1 { // "and 1 more" would take the line of that one.
			t.notes = append(t.notes, fmt.Sprintf("%s: and %s", host, text.Count(len(all)-i, "more line")))
			return
		}
		t.notes = append(t.notes, host+": "+brief(n))
	}
}

func (a *app) printHosts(t *hostTable) {
	width := columnsOf(a.io.Out)
	if t.wide {
		width = 0
	}
	for _, l := range t.head {
		fmt.Fprintln(a.io.Out, l)
	}
	if len(t.rows) > 0 {
		a.fit(width, t.columns, t.rows)
	}
	for _, n := range t.notes {
		a.wrapped(t.prefix, n, width)
	}
	for _, l := range t.tail {
		fmt.Fprintln(a.io.Out, l)
	}
}
