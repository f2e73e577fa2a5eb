package top

// help draws what keys and columns mean.
func (m *Model) help(g *Grid) {
	lines := []string{
		"gpushare top",
		"",
		"l g t u p    leases, GPUs, tenants, users, processes",
		"↑ ↓ PgUp PgDn Home End    choose a row",
		"s    the next key to sort by        r    the other way around",
		"/    filter: rows that have the text in them        Esc    clears it",
		"k    stop the lease of the chosen row, after a question",
		"Ctrl-L    draw the screen again        q    quit",
		"",
		"BUSY    part of the last period in which a kernel ran; of a lease: its share of that",
		"DUE     part of the time that a lease gets now        IDLE    for how long no kernel of it ran",
		"POWER   what the GPU draws, of the lowest limit       SLOWED  why its clocks are lowered",
		"LEFT    until its max_time ends                       TIME    since it started",
		"-       not reported by the driver, the board, or the spec",
		"Members stop their own leases only: the daemon decides, and its answer is shown.",
	}
	for y, l := range lines {
		if y >= g.Height-1 {
			break
		}
		style := plain
		if y == 0 {
			style = heading
		}
		g.put(0, y, style, cut(l, g.Width, false))
	}
	g.put(0, g.Height-1, faint, "any key goes back")
}
