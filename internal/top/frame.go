package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
)

// fewColumns is a width below which words are shorter.
const fewColumns = 90

// The smallest screen that shows something of use.
const (
	LeastWidth  = 60
	LeastHeight = 12
)

// Frame draws the screen as it is at a time.
func (m *Model) Frame(width, height int, now time.Time) *Grid {
	g := newGrid(max(width, 1), max(height, 1))
	switch {
	case width < LeastWidth || height < LeastHeight:
		m.small(g)
		return g
	case m.last == nil:
		m.waits(g)
		return g
	case m.mode == helping:
		m.help(g)
		return g
	}
	m.drawn = m.table(width, now)
	m.drawn.keep(m.filter)
	m.drawn.sort(m.sorting[m.view()], m.reversed[m.view()])
	y := m.head(g)
	foot := m.conditions(g)
	if m.view() == GPUs {
		m.screenful = max(1, foot-y-1)
		m.lower(g, y, foot)
	} else {
		y = m.gpus(g, y, foot)
		m.screenful = max(1, foot-y-2)
		m.lower(g, y+1, foot)
		if next := y + len(m.drawn.rows) + 3; m.view() == Leases && foot-next >= linesForMore {
			more := m.processes()
			more.keep(m.filter)
			g.more(next, foot, &more)
		}
	}
	m.bottom(g)
	return g
}

// small says that the screen is too small, as far as it has room for that.
func (m *Model) small(g *Grid) {
	lines := []string{
		fmt.Sprintf("%d×%d is too small:", g.Width, g.Height),
		fmt.Sprintf("top needs %d×%d", LeastWidth, LeastHeight),
		"q ends it",
	}
	for y, l := range lines {
		g.put(0, y, plain, l)
	}
}

// waits is the screen before the first reading.
func (m *Model) waits(g *Grid) {
	if m.failed == "" {
		g.put(0, 0, plain, "reading the status …")
	} else {
		g.put(0, 0, bad, cut(m.connection(), g.Width, false))
	}
	g.put(0, g.Height-1, faint, "q ends it")
}

// connection says since when nothing newer could be read, and why.
func (m *Model) connection() string {
	return "no connection since " + m.since.In(m.zone()).Format(time.TimeOnly) + ": " + m.failed
}

// head draws the lines about the node, and returns the next one.
func (m *Model) head(g *Grid) (y int) {
	s := m.last.Status
	running, waiting := 0, 0
	for i := range s.Leases {
		if s.Leases[i].State == api.LeaseQueued {
			waiting++
		} else {
			running++
		}
	}
	x := g.put(0, 0, heading, s.Node.Host)
	parts := []string{
		s.At.In(m.zone()).Format(time.TimeOnly), count(len(s.GPUs), "GPU"), count(running, "lease"), fmt.Sprintf("%d waiting", waiting),
		generationText(&s.Node),
	}
	if s.Node.Driver != "" {
		parts = append(parts, "driver "+s.Node.Driver)
	}
	if s.Node.Operation != "" {
		parts = append(parts, "changing: "+s.Node.Operation)
	}
	if k := s.Node.Maintenance; k != nil {
		parts = append(parts, "maintenance")
	}
	g.put(x, 0, plain, cut("  "+strings.Join(parts, " · "), g.Width-x, false))
	if m.failed != "" {
		g.put(0, 1, bad, cut(m.connection(), g.Width, false))
		return 2
	}
	return 1
}

func generationText(n *api.NodeStatus) string {
	switch {
	case n.Unmanaged != nil:
		return "unmanaged"
	case n.Generation == 0:
		return "no spec"
	case n.Enforce == "on":
		return fmt.Sprintf("generation %d, enforcing", n.Generation)
	}
	return fmt.Sprintf("generation %d, observing only", n.Generation)
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// conditions draws those that no administrator acknowledged above the last line, and returns the line where they begin.
func (m *Model) conditions(g *Grid) (y int) {
	var lines []string
	known := 0
	for i := range m.last.Status.Node.Conditions {
		c := &m.last.Status.Node.Conditions[i]
		if c.Acknowledged != nil {
			known++
			continue
		}
		lines = append(lines, "! "+conditionText(m.last.Status, c))
	}
	most := max(2, g.Height/6)
	if len(lines) > most {
		rest := len(lines) - most + 1
		lines = append(lines[:most-1], fmt.Sprintf("! and %d more: 'gpushare condition list'", rest))
	}
	if known > 0 && len(lines) < most {
		lines = append(lines, "  "+count(known, "acknowledged condition"))
	}
	y = g.Height - 1 - len(lines)
	for i, l := range lines {
		style := warning
		if !strings.HasPrefix(l, "!") {
			style = faint
		}
		g.put(0, y+i, style, cut(l, g.Width, false))
	}
	return y
}

// conditionText names the GPU or the tenant of a condition, unless its message does.
func conditionText(s *api.Status, c *api.Condition) string {
	where := c.Tenant
	for i := range s.GPUs {
		if s.GPUs[i].UUID == c.GPU {
			where = gpuName(&s.GPUs[i])
		}
	}
	if where == "" || strings.Contains(c.Message, where) {
		return c.Message
	}
	return where + ": " + c.Message
}

// lower draws the table that the user chose between two lines.
func (m *Model) lower(g *Grid, from, to int) {
	t := &m.drawn
	if len(t.rows) == 0 {
		none := t.none
		if m.filter != "" {
			none = "nothing has " + m.filter + " in it: Esc clears the filter"
		}
		g.put(0, from, faint, none)
		return
	}
	columns := slices.Clone(t.columns)
	if k := m.sorting[m.view()]; k > 0 || m.reversed[m.view()] {
		for i := range columns {
			if k > 0 && strings.EqualFold(columns[i].head, t.keys[k]) {
				columns[i].head += map[bool]string{false: "▼", true: "▲"}[m.reversed[m.view()]]
			}
		}
	}
	height := to - from
	if len(t.rows)+1 > height {
		height--
	}
	if hidden := g.table(from, height, columns, t.rows, m.selection); hidden > 0 {
		g.put(0, to-1, faint, fmt.Sprintf("%d more rows", hidden))
	}
}

// linesForMore is how many lines below the leases are used for the processes.
const linesForMore = 4

// more draws a second table, from which nothing can be chosen.
func (g *Grid) more(from, to int, t *table) {
	if len(t.rows) == 0 {
		return
	}
	height := to - from
	if len(t.rows)+1 > height {
		height--
	}
	if hidden := g.table(from, height, t.columns, t.rows, ""); hidden > 0 {
		g.put(0, to-1, faint, fmt.Sprintf("%d more rows: p shows them", hidden))
	}
}

// bottom draws the last line: what the user is asked, the answer to the last action, or the keys.
func (m *Model) bottom(g *Grid) {
	y := g.Height - 1
	switch {
	case m.mode == filtering:
		x := g.put(0, y, heading, "filter: ")
		g.put(g.put(x, y, plain, cut(m.filter, g.Width/2, false)), y, faint, "▏ Enter keeps it, Esc clears it")
	case m.mode == confirming:
		const answers = "  y stops it, any other key does not"
		x := g.put(0, y, bad, cut(m.pending.text, g.Width-len(answers), false))
		g.put(x, y, heading, answers)
	case m.message != "":
		style := good
		if m.wrong {
			style = bad
		}
		g.put(0, y, style, cut(m.message, g.Width, false))
	default:
		m.keys(g, y)
	}
}

// keys draws what keys do, as far as there is room, and the filter and the order that are in force.
func (m *Model) keys(g *Grid, y int) {
	x := 0
	processes := "processes"
	if g.Width < fewColumns {
		processes = "pids"
	}
	for _, k := range []struct {
		key, does string
		on        bool
	}{
		{"l", "leases", m.view() == Leases},
		{"g", "GPUs", m.view() == GPUs},
		{"t", "tenants", m.view() == Tenants},
		{"u", "users", m.view() == Users},
		{"p", processes, m.view() == Processes},
		{"/", "filter", m.filter != ""},
		{"s", "sort", m.sorting[m.view()] > 0},
		{"k", "stop", false},
		{"?", "help", false},
		{"q", "quit", false},
	} {
		style := plain
		if k.on {
			style = selected
		}
		if x+wide(k.key+" "+k.does) > g.Width {
			return
		}
		x = g.put(x, y, heading, k.key)
		x = g.put(x, y, style, " "+k.does) + 1
	}
	state := ""
	if m.filter != "" {
		state = " filter: " + m.filter
	}
	if k := m.sorting[m.view()]; k > 0 && k < len(m.drawn.keys) {
		state += "  by " + m.drawn.keys[k]
	}
	g.put(x, y, accent, cut(state, max(0, g.Width-x), false))
}
