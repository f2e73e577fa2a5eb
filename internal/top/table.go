package top

import (
	"cmp"
	"slices"
	"strings"
)

// column is one column of a table.
type column struct {
	head   string
	right  bool
	least  int  // to which it is cut; 0: it is never cut
	most   int  // that it gets; 0: what its cells need
	drop   int  // the order in which columns are left out where the screen is too narrow, the highest first; 0: never
	middle bool // it is cut in its middle
	fills  bool // it gets what is left of the line
}

// cell is the text of one cell of a table.
type cell struct {
	text  string
	style Style
}

func text(s string) cell { return cell{s, plain} }

// row is one line of a table. Rows with an id can be selected.
type row struct {
	id     string
	cells  []cell
	search string // what a filter compares
	by     []rank // what the keys of the table compare
	lease  string // that it is of, if that can be stopped
}

// rank is what rows are sorted by: the larger number first, and what is not known last; or by text.
type rank struct {
	number *float64
	text   string
}

func number(f float64) rank { return rank{number: &f} }

// table is one of the tables below the GPUs.
type table struct {
	columns []column
	rows    []row
	keys    []string // the first one is the order in which rows were added; the others are those of the ranks of rows
	none    string   // instead of rows, if there are none
}

func (t *table) ids() (out []string) {
	for i := range t.rows {
		if t.rows[i].id != "" {
			out = append(out, t.rows[i].id)
		}
	}
	return out
}

// leaseOf is the lease of a row; or why it has none that could be stopped.
func (t *table) leaseOf(id string) (lease, why string) {
	for i := range t.rows {
		if r := &t.rows[i]; id != "" && r.id == id {
			if r.lease == "" {
				return "", "this row is no lease that runs: choose one in the table of leases (l)"
			}
			return r.lease, ""
		}
	}
	return "", "choose a lease with the arrow keys first"
}

// keep removes the rows that a filter does not find.
func (t *table) keep(filter string) {
	if filter == "" {
		return
	}
	t.rows = slices.DeleteFunc(t.rows, func(r row) bool {
		return !strings.Contains(strings.ToLower(r.search), strings.ToLower(filter))
	})
}

// sort sorts rows by a key.
func (t *table) sort(key int, reversed bool) {
	if key > 0 {
		slices.SortStableFunc(t.rows, func(a, b row) int { return compare(a.by[key-1], b.by[key-1]) })
	}
	if reversed {
		slices.Reverse(t.rows)
	}
}

func compare(a, b rank) int {
	switch {
	case a.number != nil && b.number != nil:
		return cmp.Compare(*b.number, *a.number)
	case a.number != nil:
		return -1
	case b.number != nil:
		return 1
	}
	return cmp.Compare(a.text, b.text)
}

const gap = 1 // between two columns

// layout selects the columns that fit, and their widths.
func layout(width int, columns []column, rows []row) (shown, widths []int) {
	natural := make([]int, len(columns))
	for i := range columns {
		for _, r := range rows {
			natural[i] = max(natural[i], wide(r.cells[i].text))
		}
		if natural[i] == 0 || columns[i].drop > 0 && isUnknown(rows, i) {
			continue // A column without values is not shown.
		}
		natural[i] = max(natural[i], wide(columns[i].head))
		if m := columns[i].most; m > 0 {
			natural[i] = min(natural[i], m)
		}
		shown = append(shown, i)
	}
	least := func(c int) int {
		if l := columns[c].least; l > 0 {
			return min(natural[c], max(l, wide(columns[c].head)))
		}
		return natural[c]
	}
	total := func() int {
		n := gap * (len(shown) - 1)
		for _, c := range shown {
			n += least(c)
		}
		return n
	}
	for total() > width {
		next := -1
		for _, c := range shown {
			if d := columns[c].drop; d > 0 && (next < 0 || d > columns[next].drop) {
				next = c
			}
		}
		if next < 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(c int) bool { return c == next })
	}
	spare := width - total()
	for _, c := range shown {
		w := least(c)
		if more := min(max(0, spare), natural[c]-w); more > 0 {
			w, spare = w+more, spare-more
		}
		widths = append(widths, w)
	}
	for i, c := range shown {
		if columns[c].fills && spare > 0 {
			widths[i] += spare
			spare = 0
		}
	}
	return shown, widths
}

// isUnknown reports whether no row has a value in a column.
func isUnknown(rows []row, column int) bool {
	return !slices.ContainsFunc(rows, func(r row) bool { return r.cells[column].text != "" && r.cells[column].text != "-" })
}

// table draws the head and the rows from a line on, at most height lines, so that the selected row is among them. It returns how many
// rows are not shown.
func (g *Grid) table(top, height int, columns []column, rows []row, selection string) (hidden int) {
	if height < 1 {
		return len(rows)
	}
	shown, widths := layout(g.Width, columns, rows)
	x := 0
	for i, c := range shown {
		g.put(x, top, heading, align(columns[c].head, widths[i], columns[c].right))
		x += widths[i] + gap
	}
	lines := height - 1
	at := slices.IndexFunc(rows, func(r row) bool { return selection != "" && r.id == selection })
	first := max(0, min(at-lines/2, len(rows)-lines))
	visible := rows[first:min(len(rows), first+lines)]
	for k := range visible {
		r, y := &visible[k], top+1+k
		x := 0
		for i, c := range shown {
			g.put(x, y, r.cells[c].style, align(cut(r.cells[c].text, widths[i], columns[c].middle), widths[i], columns[c].right))
			x += widths[i] + gap
		}
		if selection != "" && r.id == selection {
			g.restyle(y, selected)
		}
	}
	return len(rows) - len(visible)
}

func align(s string, width int, right bool) string {
	pad := strings.Repeat(" ", max(0, width-wide(s)))
	if right {
		return pad + s
	}
	return s + pad
}
