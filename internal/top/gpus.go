package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// barWidth is that of the bars of GPUs.
func barWidth(width int) int {
	switch {
	case width >= 180:
		return 16
	case width >= 110:
		return 10
	}
	return 8
}

// gpus draws the GPUs above another table, and returns the line after them. They get at most half of the screen.
func (m *Model) gpus(g *Grid, from, foot int) (next int) {
	columns := gpuColumns(column{head: "USERS", least: 14, drop: 4, fills: true})
	rows := m.gpuRows(g.Width, true)
	most := max(3, (foot-from)/2)
	if len(rows)+1 > most {
		rows = m.gpuRows(g.Width, false) // without their instances
	}
	height := min(len(rows)+1, most)
	if len(rows)+1 > height {
		height--
		g.put(0, from+height, faint, fmt.Sprintf("%s more: g shows them", count(len(rows)-height+1, "GPU")))
		g.table(from, height, columns, rows, "")
		return from + height + 1
	}
	g.table(from, height, columns, rows, "")
	return from + height
}

// gpuTable has all GPUs with their instances, and below each who holds memory of it, outside of leases too.
func (m *Model) gpuTable(width int) table {
	t := table{columns: gpuColumns(column{head: "USERS", least: 16, fills: true}), keys: []string{"order"}, none: "no GPUs"}
	rows := m.gpuRows(width, true)
	for i := range rows {
		t.rows = append(t.rows, rows[i])
		gpu, _, _ := strings.Cut(rows[i].id, "@")
		if i+1 == len(rows) || !strings.HasPrefix(rows[i+1].id, gpu+"@") {
			t.rows = append(t.rows, m.inUseBy(gpu)...)
		}
	}
	return t
}

// inUseBy has a row for each lease on a GPU, and for each user who uses it outside of leases.
func (m *Model) inUseBy(gpu string) (out []row) {
	if m.last.Idle == nil {
		return nil
	}
	for i := range m.last.Idle.Uses {
		u := &m.last.Idle.Uses[i]
		if u.GPU != gpu {
			continue
		}
		cells := make([]cell, gpuCells)
		cells[1], cells[2] = text("└"+dash(u.User)), text("lease")
		if u.Lease == "" {
			cells[2] = cell{"outside", warning}
		}
		cells[5] = text(cmp.Or(known(u.Used), "?") + " of " + gib(u.Held))
		about := u.Lease
		if u.Lease == "" {
			about = "outside of leases: " + pids(u.PIDs)
		}
		switch {
		case u.IdleSeconds != nil && u.State == api.UseIdle:
			about += ", idle for " + duration(seconds(*u.IdleSeconds))
		case u.State == api.UseUnknown:
			about += ", idle: not known"
		}
		cells[13] = text(about)
		out = append(out, row{
			id: fmt.Sprintf(
				"%s@%s %s",
				gpu,
				u.Lease,
				u.User,
			),
			cells:  cells,
			lease:  u.Lease,
			search: strings.Join([]string{u.User, u.Tenant, about}, " "),
		})
	}
	return out
}

// pids lists processes, the first few of them.
func pids(all []int) string {
	const most = 4
	words := make([]string, 0, most+1)
	for _, p := range all[:min(len(all), most)] {
		words = append(words, fmt.Sprint(p))
	}
	if len(all) > most {
		words = append(words, fmt.Sprintf("and %d more", len(all)-most))
	}
	return "pid " + strings.Join(words, ", ")
}

// gpuCells is the number of columns of GPUs.
const gpuCells = 14

// historyWidth is that of each line of history; 0: there is no room for them.
func historyWidth(width int) int {
	switch {
	case width >= 180:
		return 24
	case width >= 120:
		return 12
	}
	return 0
}

// gpuColumns are the columns of GPUs. The last one says who uses them: all that fits of it, or all of it.
func gpuColumns(users column) []column {
	return []column{
		{head: "GPU", right: true},
		{head: "MODE", least: 10},
		{head: "STATE"},
		{head: "BUSY"},
		{head: "BEFORE", drop: 7},
		{head: "GPU MEMORY"},
		{head: "USED BEFORE", drop: 8},
		{head: "TEMP", right: true},
		{head: "POWER", right: true},
		{head: "FAN", right: true, drop: 9},
		{head: "SM CLOCK", right: true, drop: 5},
		{head: "SLOWED", least: 10, most: 24, drop: 2},
		{head: "LEASES", right: true, drop: 6},
		users,
	}
}

// gpuRows has a row for each GPU, and one for each of its instances.
func (m *Model) gpuRows(width int, instances bool) (out []row) {
	s := m.last.Status
	line, bars := historyWidth(width), barWidth(width)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		busy, used := busyOf(g), memoryPart(g, &g.Memory)
		before := func(all []*float64) cell {
			if line == 0 {
				return cell{}
			}
			return cell{history(all, line), accent}
		}
		p, sensors := m.past[g.UUID], sensorsOf(g)
		out = append(out, row{id: g.UUID, search: g.UUID + " " + g.Mode + " " + g.State + " " + g.Model, cells: []cell{
			text(index(g.Index)),
			text(g.Mode),
			{g.State, stateStyle(g.State)},
			{barOf(busy, bars) + fmt.Sprintf(" %4s", percentOf(busy)), levelOfBusy(busy)},
			before(p.busy),
			{barOf(used, bars) + " " + memoryText(g, &g.Memory), levelOf(used)},
			before(p.memory),
			temperature(g),
			power(sensors),
			fan(sensors),
			clock(sensors),
			slowed(sensors),
			text(fmt.Sprint(len(leasesOn(s, g)))),
			{m.usersOf(g), plain},
		}})
		if !instances || g.MIG == nil {
			continue
		}
		for j := range g.MIG.Instances {
			out = append(out, m.instanceRow(g, &g.MIG.Instances[j], bars))
		}
	}
	return out
}

// instanceRow is a MIG instance below its GPU.
func (m *Model) instanceRow(g *api.GPUStatus, in *api.InstanceStatus, bars int) row {
	used := memoryPart(g, &in.Memory)
	who := slices.Clone(in.Leases)
	if len(who) == 0 && in.Lease != "" {
		who = []string{in.Lease}
	}
	state := cell{"free", faint}
	switch {
	case in.Foreign:
		state = cell{"foreign", warning}
	case len(who) > 0:
		state = cell{"leased", plain}
	}
	cells := make([]cell, gpuCells)
	cells[1] = cell{fmt.Sprintf("└%s@%d", in.Profile, in.Placement.Start), plain}
	cells[2] = state
	busy := useOf(in.Use)
	cells[3] = cell{barOf(busy, bars) + fmt.Sprintf(" %4s", percentOf(busy)), levelOfBusy(busy)}
	cells[5] = cell{barOf(used, bars) + " " + memoryText(g, &in.Memory), levelOf(used)}
	cells[12] = text(fmt.Sprint(len(who)))
	cells[13] = text(strings.Join(who, " "))
	return row{
		id: g.UUID + "@" + fmt.Sprint(
			in.Placement.Start,
		),
		cells:  cells,
		lease:  first(who),
		search: in.Profile + " " + strings.Join(who, " "),
	}
}

// useOf is the part of the last period in which an instance was busy; nil: it is not known.
func useOf(u *api.InstanceUse) *float64 {
	if u == nil {
		return nil
	}
	return part(u.Busy)
}

// sensorsOf are those of a GPU that answers.
func sensorsOf(g *api.GPUStatus) *api.Sensors {
	if !answers(g) {
		return nil
	}
	return g.Sensors
}

// memoryText is what is used of the memory of a GPU or of its instance.
func memoryText(g *api.GPUStatus, m *api.GPUMemory) string {
	used := "-"
	if answers(g) {
		used = gib(m.Used)
	}
	return used + "/" + gib(m.Total)
}

func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// usersOf lists who uses a GPU: users with leases, and those outside of leases with how much they use.
func (m *Model) usersOf(g *api.GPUStatus) string {
	s := m.last.Status
	var inside, outside []string
	for _, l := range leasesOn(s, g) {
		if u := dash(l.User); !slices.Contains(inside, u) {
			inside = append(inside, u)
		}
	}
	if m.last.Idle != nil {
		for i := range m.last.Idle.Uses {
			if u := &m.last.Idle.Uses[i]; u.Lease == "" && u.GPU == g.UUID {
				outside = append(outside, strings.TrimSpace(u.User+" "+known(u.Used)))
			}
		}
	}
	out := strings.Join(inside, " ")
	if len(outside) > 0 {
		out = strings.TrimSpace(out + "  outside of leases: " + strings.Join(outside, ", "))
	}
	return out
}

// known is an amount of memory, empty if it is not known.
func known(bytes *uint64) string {
	if bytes == nil {
		return ""
	}
	return gib(*bytes)
}

func temperature(g *api.GPUStatus) cell {
	s := sensorsOf(g)
	if s == nil || s.Temperature == nil {
		return cell{"-", faint}
	}
	style := plain
	if h := g.Health; h != nil && h.Readings != nil && h.Readings.SlowdownTemperature != nil {
		switch limit := *h.Readings.SlowdownTemperature; {
		case *s.Temperature >= limit:
			style = bad
		case *s.Temperature >= limit-5:
			style = warning
		}
	}
	return cell{fmt.Sprintf("%d°C", *s.Temperature), style}
}

func power(s *api.Sensors) cell {
	if s == nil || s.PowerWatts == nil && s.PowerLimitWatts == nil {
		return cell{"-", faint}
	}
	draw, limit := "-", "-"
	style := plain
	if s.PowerWatts != nil {
		draw = fmt.Sprintf("%.0f", *s.PowerWatts)
	}
	if s.PowerLimitWatts != nil {
		limit = fmt.Sprintf("%.0f", *s.PowerLimitWatts)
		if s.PowerWatts != nil && *s.PowerWatts >= 0.98**s.PowerLimitWatts {
			style = warning
		}
	}
	return cell{draw + "/" + limit + "W", style}
}

func fan(s *api.Sensors) cell {
	if s == nil || s.FanPercent == nil {
		return cell{"-", faint}
	}
	return text(fmt.Sprintf("%d%%", *s.FanPercent))
}

func clock(s *api.Sensors) cell {
	if s == nil || s.Clocks == nil || s.Clocks.SM == 0 {
		return cell{"-", faint}
	}
	if s.Clocks.MaxSM == 0 {
		return text(fmt.Sprintf("%dMHz", s.Clocks.SM))
	}
	return text(fmt.Sprintf("%d/%dMHz", s.Clocks.SM, s.Clocks.MaxSM))
}

// slowed is why the clocks are lowered. The power limit is no trouble, but what a user asks about.
func slowed(s *api.Sensors) cell {
	switch {
	case s == nil || s.Throttle == nil:
		return cell{"-", faint}
	case len(s.Throttle) == 0:
		return cell{"no", faint}
	}
	short := map[string]string{
		"power-cap": "power", "thermal": "heat", "hardware": "HW", "hardware-thermal": "HW heat", "power-brake": "power brake",
	}
	style := warning
	words := make([]string, len(s.Throttle))
	for i, why := range s.Throttle {
		words[i] = cmp.Or(short[why], why)
		if why != "power-cap" {
			style = bad
		}
	}
	return cell{strings.Join(words, ","), style}
}

// levelOfBusy is the style of a utilization: a busy GPU is no trouble.
func levelOfBusy(part *float64) Style {
	if part == nil {
		return faint
	}
	return good
}

// stateStyle is that of a state. The words are those of the API.
func stateStyle(state string) Style {
	switch state {
	case "held", "unhealthy", "lost", "stuck", "unreadable", "missing", "no-driver", "mismatch":
		return bad
	case "changing", "cordoned", "drained", "mps-down", "parked", "ending", "waiting":
		return warning
	}
	return plain
}
