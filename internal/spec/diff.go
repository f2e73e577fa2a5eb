package spec

import (
	"fmt"
	"strings"
)

// Diff gives the unified diff from one text to another with three lines of context, "" when they are the same.
func Diff(before, after string) string {
	if before == after {
		return ""
	}
	a, b := lines(before), lines(after)
	var out strings.Builder
	out.WriteString("--- before\n+++ after\n")
	edits := script(a, b)
	for len(edits) > 0 {
		first := 0
		for first < len(edits) && edits[first].op == ' ' {
			first++
		}
		if first == len(edits) {
			break
		}
		last, end := first, first
		for end < len(edits) && end-last <= 2*around {
			if edits[end].op != ' ' {
				last = end
			}
			end++
		}
		from, to := max(first-around, 0), min(last+1+around, len(edits))
		hunk(&out, edits[from:to], a, b)
		edits = edits[to:]
	}
	return out.String()
}

// around is how many unchanged lines are shown on each side of a change.
const around = 3

// edit is one line that stays (' '), goes ('-') or comes ('+'); i and j are how many lines of each side came before.
type edit struct {
	op   byte
	i, j int
}

func hunk(out *strings.Builder, edits []edit, a, b []string) {
	removed, added := 0, 0
	for _, e := range edits {
		if e.op != '+' {
			removed++
		}
		if e.op != '-' {
			added++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", lineRange(edits[0].i, removed), lineRange(edits[0].j, added))
	for _, e := range edits {
		line := ""
		if e.op == '+' {
			line = b[e.j]
		} else {
			line = a[e.i]
		}
		out.WriteByte(e.op)
		out.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// lineRange is "first line,count" in a unified diff: an empty range names the line before it.
func lineRange(before, count int) string {
	switch count {
	case 0:
		return fmt.Sprintf("%d,0", before)
	case 1:
		return fmt.Sprintf("%d", before+1)
	}
	return fmt.Sprintf("%d,%d", before+1, count)
}

func lines(s string) []string {
	l := strings.SplitAfter(s, "\n")
	if l[len(l)-1] == "" {
		l = l[:len(l)-1]
	}
	return l
}

// maxEdits bounds the search: texts that differ in more lines than this are shown as one replaced by the other.
const maxEdits = 1000

// script finds the shortest list of lines to remove and add (Myers' greedy search, forwards).
func script(a, b []string) []edit {
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	x, y := len(a), len(b)
	for x > start && y > start && a[x-1] == b[y-1] {
		x, y = x-1, y-1
	}
	var edits []edit
	for i := range start {
		edits = append(edits, edit{' ', i, i})
	}
	edits = append(edits, middle(a[start:x], b[start:y], start)...)
	for ; x < len(a); x, y = x+1, y+1 {
		edits = append(edits, edit{' ', x, y})
	}
	return edits
}

func middle(a, b []string, start int) []edit {
	limit := min(len(a)+len(b), maxEdits)
	// reach[d][k+d] is how far on diagonal k = x−y one gets with d edits.
	var reach [][]int
	get := func(d, k int) int {
		if k < -d || k > d {
			return -1
		}
		return reach[d][k+d]
	}
	for d := 0; d <= limit; d++ {
		row := make([]int, 2*d+1)
		for k := -d; k <= d; k += 2 {
			x := 0
			if d > 0 {
				x = get(d-1, k-1) + 1 // remove a line of a
				if down := get(d-1, k+1); k == -d || k != d && down >= x {
					x = down // add a line of b
				}
			}
			y := x - k
			for x >= 0 && y >= 0 && x < len(a) && y < len(b) && a[x] == b[y] {
				x, y = x+1, y+1
			}
			row[k+d] = x
			if x >= len(a) && y >= len(b) {
				reach = append(reach, row)
				return walk(reach, get, len(a), len(b), start)
			}
		}
		reach = append(reach, row)
	}
	var edits []edit
	for i := range a {
		edits = append(edits, edit{'-', start + i, start})
	}
	for j := range b {
		edits = append(edits, edit{'+', start + len(a), start + j})
	}
	return edits
}

// walk goes back from the end along the diagonals that were reached.
func walk(reach [][]int, get func(d, k int) int, x, y, start int) []edit {
	var back []edit
	for d := len(reach) - 1; d >= 0; d-- {
		k := x - y
		px, py := 0, 0
		if d > 0 {
			pk := k - 1
			if down := get(d-1, k+1); k == -d || k != d && down >= get(d-1, k-1)+1 {
				pk = k + 1
			}
			px = get(d-1, pk)
			py = px - pk
		}
		for x > px && y > py {
			x, y = x-1, y-1
			back = append(back, edit{' ', start + x, start + y})
		}
		if d == 0 {
			break
		}
		if x == px {
			y--
			back = append(back, edit{'+', start + x, start + y})
		} else {
			x--
			back = append(back, edit{'-', start + x, start + y})
		}
	}
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}
