package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
)

// table is the table that the user chose.
func (m *Model) table(width int, now time.Time) table {
	switch m.view() {
	case GPUs:
		return m.gpuTable(width)
	case Tenants:
		return m.tenants()
	case Users:
		return m.users()
	case Processes:
		return m.processes()
	}
	return m.leases(width, now)
}

// widthOfXIDs is from which width on the XIDs of leases are shown.
const widthOfXIDs = 160

func (m *Model) leases(width int, now time.Time) table {
	t := table{
		columns: []column{
			{head: "LEASE", least: 16, middle: true},
			{head: "USER", least: 6, most: 16},
			{head: "TENANT", least: 6, drop: 8},
			{head: "GPU", least: 11, most: 24},
			{head: "STATE"},
			{head: "DUE", right: true, drop: 7},
			{head: "BUSY", right: true},
			{head: "MEMORY", right: true},
			{head: "IDLE", right: true},
			{head: "TIME", right: true, drop: 2},
			{head: "LEFT", right: true, drop: 6},
			{head: "PIDS", right: true, drop: 9},
			{head: "XID", least: 4, most: 16, drop: 10},
			{head: "COMMAND", least: 7, drop: 4, fills: true},
		},
		keys: []string{"order", "BUSY", "MEMORY", "IDLE", "TIME", "USER"},
		none: "no leases",
	}
	xid := slices.IndexFunc(t.columns, func(c column) bool { return c.head == "XID" })
	s := m.last.Status
	for _, waits := range []bool{false, true} {
		for i := range s.Leases {
			if l := &s.Leases[i]; (l.State == api.LeaseQueued) == waits {
				r := m.leaseRow(l, now)
				if width < widthOfXIDs {
					r.cells[xid] = cell{} // The column is not shown: the room is for the command.
				}
				t.rows = append(t.rows, r)
			}
		}
	}
	return t
}

func (m *Model) leaseRow(l *api.Lease, now time.Time) row {
	state, style, command := leaseState(l)
	var busy, used, idle, ran *float64
	due := "-"
	if h := l.Share; h != nil {
		busy = part(h.Busy)
		due = fmt.Sprintf("%.0f%%", h.Entitled)
		if h.Due != nil {
			due = fmt.Sprintf("%.0f%%", *h.Due)
		}
	}
	if busy == nil {
		busy = m.busyAlone(l)
	}
	if k := l.GPUMemory; k != nil && !k.Unknown && l.State != api.LeaseQueued {
		used = new(float64(k.Used))
	}
	left := "-"
	elapsed := "-"
	if l.Started != nil {
		ran = new(now.Sub(*l.Started).Seconds())
		elapsed = duration(now.Sub(*l.Started))
	}
	if l.Expires != nil {
		left = duration(l.Expires.Sub(now))
	}
	idleText := "-"
	if l.State != api.LeaseQueued {
		idle, idleText = m.idleOf(l)
	}
	pids := "-"
	if l.Processes > 0 {
		pids = fmt.Sprint(l.Processes)
	}
	r := row{
		id: l.ID,
		cells: []cell{
			text(l.ID), text(dash(l.User)), text(l.Tenant), text(dash(place(m.last.Status, l))),
			{state, style},
			text(due),
			text(percentOf(busy)), text(memoryOf(l)),
			{idleText, idleStyle(idle)},
			text(elapsed), text(left), text(pids), xids(l), text(command),
		},
		search: strings.Join([]string{l.ID, l.User, l.Tenant, l.Grant, l.Kind, state, "gpu" + place(m.last.Status, l), command}, " "),
		by:     []rank{{number: busy}, {number: used}, {number: idle}, {number: ran}, {text: l.User}},
	}
	if l.State != api.LeaseQueued {
		r.lease = l.ID
	}
	return r
}

// busyAlone is how busy the GPUs or the instance are that a lease has alone; nil: it shares them, or that is not known.
func (m *Model) busyAlone(l *api.Lease) *float64 {
	if l.State == api.LeaseQueued || l.Share != nil || l.Kind != api.ModeExclusive && l.Kind != api.ModeMIG {
		return nil
	}
	total, n := 0.0, 0
	for i := range m.last.Status.GPUs {
		g := &m.last.Status.GPUs[i]
		if !uses(g, l) {
			continue
		}
		busy := busyOf(g)
		if instanceOf(g, l) != nil {
			busy = useOf(l.Use) // Not what the instance did before it had this lease, nor what others do in it.
		}
		if busy == nil {
			return nil
		}
		total, n = total+*busy, n+1
	}
	if n == 0 {
		return nil
	}
	return new(total / float64(n))
}

// part is a percentage as a part.
func part(percent *float64) *float64 {
	if percent == nil {
		return nil
	}
	return new(*percent / 100)
}

// leaseState is the state of a lease, and what it runs or waits for.
func leaseState(l *api.Lease) (state string, style Style, command string) {
	command = strings.Join(l.Command, " ")
	switch {
	case l.State == api.LeaseQueued:
		return fmt.Sprintf("waits #%d", l.Position), warning, l.Waiting
	case l.GPULost() != nil:
		return "GPU lost", bad, command
	case len(l.FrozenFor) > 0:
		return "frozen", warning, command
	case l.GPUMemory != nil && l.GPUMemory.Stage != "":
		stages := map[string]string{"notice": "near limit", "over": "over limit"}
		return cmp.Or(stages[l.GPUMemory.Stage], l.GPUMemory.Stage), bad, command
	case l.State == api.LeaseEnding:
		return l.State, warning, command
	}
	return l.State, plain, command
}

// xids are the numbers of the XIDs that concern a lease.
func xids(l *api.Lease) cell {
	if len(l.XIDs) == 0 {
		return cell{"-", faint}
	}
	return cell{l.XIDNumbers(), warning}
}

// memoryOf is what a lease uses of its limit.
func memoryOf(l *api.Lease) string {
	k := l.GPUMemory
	if k == nil || l.State == api.LeaseQueued {
		return "-"
	}
	used := gib(k.Used)
	if k.Unknown {
		used = "?"
	}
	if k.Limit == 0 {
		return used
	}
	return used + "/" + gib(k.Limit)
}

// idleOf is for how long a lease was seen idle; - if that is not measured.
func (m *Model) idleOf(l *api.Lease) (idle *float64, shown string) {
	if m.last.Idle != nil {
		for i := range m.last.Idle.Uses {
			u := &m.last.Idle.Uses[i]
			if u.Lease != l.ID || u.IdleSeconds == nil || u.State == api.UseUnknown {
				continue
			}
			if idle == nil || *u.IdleSeconds < *idle { // of several GPUs it uses one
				idle = new(*u.IdleSeconds)
			}
		}
	}
	if idle == nil {
		idle = l.IdleSeconds
	}
	if idle == nil {
		return nil, "-"
	}
	return idle, duration(seconds(*idle))
}

// idleStyle marks what is idle for long.
func idleStyle(idle *float64) Style {
	switch {
	case idle == nil:
		return faint
	case seconds(*idle) >= 10*time.Minute:
		return warning
	}
	return plain
}
