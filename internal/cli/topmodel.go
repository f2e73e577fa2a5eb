package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/internal/top"
)

// The tables of top.
const (
	topGPUs    = "gpu"
	topTenants = "tenant"
	topLeases  = "lease"
)

// mostPast is how many samples of a GPU are kept for the line of its utilisation.
const mostPast = 60

// topModel is what top shows: the last status, and the utilisation of each GPU before. It has no clock and no terminal.
type topModel struct {
	by     string
	color  bool
	status *api.Status
	past   map[string][]*int // by UUID, the newest last; nil where the driver reports none
}

// take adds a status.
func (m *topModel) take(s *api.Status) {
	if m.past == nil {
		m.past = map[string][]*int{}
	}
	m.status = s
	for i := range s.GPUs {
		g := &s.GPUs[i]
		all := append(m.past[g.UUID], g.Utilization)
		m.past[g.UUID] = all[max(0, len(all)-mostPast):]
	}
}

// frame draws lines of at most width characters; 0 is without limit.
func (m *topModel) frame(width int) []string {
	var b bytes.Buffer
	a := &app{io: Stdio{Out: &b}, color: m.color}
	s := m.status
	waiting := slices.Collect(func(yield func(*api.Lease) bool) {
		for i := range s.Leases {
			if l := &s.Leases[i]; l.State == api.LeaseQueued && !yield(l) {
				return
			}
		}
	})
	head := fmt.Sprintf(
		"%s  %s  generation %d, %s  %s, %s, %d waiting", printable(s.Node.Host), s.At.Local().Format(time.TimeOnly), s.Node.Generation,
		s.Node.Enforce, text.Count(len(s.GPUs), "GPU"), text.Count(len(s.Leases)-len(waiting), "lease"), len(waiting),
	)
	fmt.Fprintln(&b, cutTo(head, width))
	fmt.Fprintln(&b)
	switch m.by {
	case topTenants:
		m.tenants(a, width)
	case topLeases:
		m.leases(a, width)
	default:
		m.gpus(a, width)
	}
	if len(waiting) > 0 {
		fmt.Fprintln(&b, "\nwaiting")
		for _, l := range waiting {
			fmt.Fprintln(&b, cutTo(printable(fmt.Sprintf("%3d  %s  %s  %s", l.Position, l.ID, dash(l.User), waitText(l))), width))
		}
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	return lines
}

func cutTo(s string, width int) string {
	if width <= 0 {
		return s
	}
	return cut(s, width, false)
}

func (m *topModel) gpus(a *app, width int) {
	columns := []column{
		{head: "GPU"},
		{head: "MODE"},
		{head: "STATE"},
		{head: "USED"},
		{head: "BEFORE", drop: 1},
		{head: "GPU MEMORY"},
		{head: "TEMP", drop: 2},
		{head: "POWER", drop: 3},
		{head: "LEASES"},
	}
	s := m.status
	var rows []line
	for i := range s.GPUs {
		g := &s.GPUs[i]
		used, leases := "-", 0
		if g.Utilization != nil {
			used = fmt.Sprintf("%d%%", *g.Utilization)
		}
		for j := range s.Leases {
			if l := &s.Leases[j]; l.State != api.LeaseQueued && slices.Contains(gpusUsedBy(s, l), g.UUID) {
				leases++
			}
		}
		rows = append(rows, line{
			cells: []string{
				gpuColumn(g.Index),
				g.Mode,
				g.State,
				used,
				sparkline(m.past[g.UUID]),
				memory(g.Memory),
				celsius(g.Sensors),
				powerOf(g.Sensors),
				fmt.Sprint(leases),
			},
			note: g.Reason,
		})
	}
	a.fit(width, columns, rows)
}

func (m *topModel) tenants(a *app, width int) {
	columns := []column{
		{head: "TENANT", min: 8},
		{head: "PRIORITY", drop: 1},
		{head: "LEASES"},
		{head: "WAITING"},
		{head: "DUE"},
		{head: "USED"},
		{head: "GPU MEMORY"},
	}
	s := m.status
	var rows []line
	for i := range s.Tenants {
		t := &s.Tenants[i]
		var sum topSum
		waiting := 0
		for j := range s.Leases {
			switch l := &s.Leases[j]; {
			case l.Tenant != t.Name:
			case l.State == api.LeaseQueued:
				waiting++
			default:
				sum.Add(l)
			}
		}
		rows = append(
			rows,
			line{cells: []string{t.Name, t.Priority, fmt.Sprint(sum.Leases), fmt.Sprint(waiting), sum.due(), sum.used(), sum.memory()}},
		)
	}
	a.fit(width, columns, rows)
}

func (m *topModel) leases(a *app, width int) {
	columns := []column{
		{head: "LEASE", min: 12, want: 24, middle: true},
		{head: "STATE"},
		{head: "TENANT", min: 6, drop: 3},
		{head: "USER", min: 5},
		{head: "GPU"},
		{head: "DUE"},
		{head: "USED"},
		{head: "GPU MEMORY"},
		{head: "COMMAND", min: 10, drop: 2},
	}
	s := m.status
	var rows []line
	for i := range s.Leases {
		l := &s.Leases[i]
		if l.State == api.LeaseQueued {
			continue
		}
		var sum topSum
		sum.Add(l)
		rows = append(rows, line{
			cells: []string{
				l.ID,
				leaseState(l),
				l.Tenant,
				dash(l.User),
				place(s, l),
				sum.due(),
				sum.used(),
				leaseMemory(l.GPUMemory),
				command(l.Command),
			},
		})
	}
	a.fit(width, columns, rows)
}

// topSum shows what leases are due and use together. A sum with an unknown part is unknown.
type topSum struct{ top.Sum }

func (t *topSum) due() string {
	if t.Shares == 0 {
		return "-"
	}
	return percent(t.Due)
}

func (t *topSum) used() string {
	if t.Shares == 0 || t.Measured < t.Shares {
		return "-"
	}
	return percent(t.Busy)
}

func (t *topSum) memory() string {
	if t.Leases == 0 || t.BytesUnknown {
		return "-"
	}
	return gib(t.Bytes)
}

// sparkWide is how many samples a line of the utilisation has.
const sparkWide = 20

// sparkline draws the last samples; a sample that is not known is a gap.
func sparkline(past []*int) string {
	past = past[max(0, len(past)-sparkWide):]
	out := make([]rune, 0, sparkWide)
	known := false
	for _, p := range past {
		if p == nil {
			out = append(out, ' ')
			continue
		}
		known = true
		out = append(out, []rune("▁▂▃▄▅▆▇█")[min(max(*p, 0), 99)*8/100])
	}
	if !known {
		return "-"
	}
	return string(out)
}

// celsius is the temperature of a GPU; - if it is not known.
func celsius(s *api.Sensors) string {
	if s == nil || s.Temperature == nil {
		return "-"
	}
	return fmt.Sprintf("%d°C", *s.Temperature)
}

// powerOf is what a GPU draws, of its limit; - if it is not known.
func powerOf(s *api.Sensors) string {
	if s == nil || s.PowerWatts == nil && s.PowerLimitWatts == nil {
		return "-"
	}
	return powerText(s)
}
