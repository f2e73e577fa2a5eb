package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// sum is what the leases of a tenant or a user have together, and where. A sum with an unknown part is not known.
type sum struct {
	Sum
	waiting int
	gpus    []string
}

func (t *sum) add(s *api.Status, l *api.Lease) {
	if l.State == api.LeaseQueued {
		t.waiting++
		return
	}
	t.Add(l)
	for i := range s.GPUs {
		if g := &s.GPUs[i]; uses(g, l) && !slices.Contains(t.gpus, index(g.Index)) {
			t.gpus = append(t.gpus, index(g.Index))
		}
	}
}

func (t *sum) cells() (due, busy, memory cell) {
	due, busy, memory = cell{"-", faint}, cell{"-", faint}, cell{"-", faint}
	if t.Shares > 0 {
		due = text(fmt.Sprintf("%.0f%%", t.Due))
		if t.Measured == t.Shares {
			busy = text(fmt.Sprintf("%.0f%%", t.Busy))
		}
	}
	if t.Leases > 0 && !t.BytesUnknown {
		memory = text(gib(t.Bytes))
	}
	return due, busy, memory
}

func (m *Model) tenants() table {
	t := table{
		columns: []column{
			{head: "TENANT", least: 8},
			{head: "PRIORITY", drop: 1},
			{head: "LEASES", right: true},
			{head: "WAITING", right: true},
			{head: "DUE", right: true},
			{head: "BUSY", right: true},
			{head: "MEMORY", right: true},
			{head: "GPU", fills: true},
		},
		keys: []string{"order", "LEASES", "BUSY", "MEMORY"},
		none: "no tenants",
	}
	s := m.last.Status
	for i := range s.Tenants {
		tenant := &s.Tenants[i]
		var k sum
		for j := range s.Leases {
			if l := &s.Leases[j]; l.Tenant == tenant.Name {
				k.add(s, l)
			}
		}
		due, busy, memory := k.cells()
		name := text(tenant.Name)
		if tenant.Frozen != nil {
			name = cell{tenant.Name + " (frozen)", warning}
		}
		t.rows = append(t.rows, row{
			id: "tenant " + tenant.Name, search: tenant.Name,
			cells: []cell{
				name, text(tenant.Priority), text(fmt.Sprint(k.Leases)), text(fmt.Sprint(k.waiting)), due, busy, memory,
				text(strings.Join(k.gpus, ",")),
			},
			by: []rank{number(float64(k.Leases)), number(k.Busy), number(float64(k.Bytes))},
		})
	}
	return t
}

// outside is what a user uses outside of leases.
type outside struct {
	bytes   uint64
	unknown bool
	gpus    []string
}

func (o *outside) cell() cell {
	switch {
	case o == nil:
		return cell{"-", faint}
	case o.unknown:
		return cell{"? on " + strings.Join(o.gpus, ","), warning}
	}
	return cell{gib(o.bytes) + " on " + strings.Join(o.gpus, ","), warning}
}

// users has a row for each user with leases, or with processes on GPUs outside of leases.
func (m *Model) users() table {
	t := table{
		columns: []column{
			{head: "USER", least: 8},
			{head: "LEASES", right: true},
			{head: "WAITING", right: true},
			{head: "DUE", right: true},
			{head: "BUSY", right: true},
			{head: "MEMORY", right: true},
			{head: "GPU"},
			{head: "OUTSIDE OF LEASES", fills: true},
		},
		keys: []string{"order", "LEASES", "BUSY", "MEMORY"},
		none: "no users",
	}
	s := m.last.Status
	sums, others := map[string]*sum{}, map[string]*outside{}
	for i := range s.Leases {
		l := &s.Leases[i]
		if sums[l.User] == nil {
			sums[l.User] = &sum{}
		}
		sums[l.User].add(s, l)
	}
	if m.last.Idle != nil {
		for i := range m.last.Idle.Uses {
			u := &m.last.Idle.Uses[i]
			if u.Lease != "" {
				continue
			}
			if others[u.User] == nil {
				others[u.User] = &outside{}
			}
			o := others[u.User]
			o.gpus = append(o.gpus, index(u.Index))
			if u.Used == nil {
				o.unknown = true
			} else {
				o.bytes += *u.Used
			}
		}
	}
	names := slices.Sorted(maps.Keys(sums))
	for _, u := range slices.Sorted(maps.Keys(others)) {
		if sums[u] == nil {
			names = append(names, u)
		}
	}
	for _, u := range names {
		k := cmp.Or(sums[u], &sum{})
		due, busy, memory := k.cells()
		t.rows = append(t.rows, row{
			id: "user " + u, search: u,
			cells: []cell{
				text(
					dash(u),
				),
				text(fmt.Sprint(k.Leases)),
				text(fmt.Sprint(k.waiting)),
				due,
				busy,
				memory,
				text(dash(strings.Join(k.gpus, ","))),
				others[u].cell(),
			},
			by: []rank{number(float64(k.Leases)), number(k.Busy), number(float64(k.Bytes))},
		})
	}
	return t
}

// processes has a row for each process on a GPU.
func (m *Model) processes() table {
	t := table{
		columns: []column{
			{head: "GPU", right: true},
			{head: "PID", right: true},
			{head: "USER", least: 5, most: 16},
			{head: "MEMORY", right: true},
			{head: "KIND", drop: 2},
			{head: "TENANT", least: 6, drop: 1},
			{head: "LEASE", least: 12, middle: true},
			{head: "PROGRAM", fills: true, least: 8},
		},
		keys: []string{"order", "MEMORY", "USER"},
		none: "no processes on GPUs",
	}
	s := m.last.Status
	userOf := map[string]string{}
	for i := range s.Leases {
		userOf[s.Leases[i].ID] = s.Leases[i].User
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		for j := range g.Processes {
			p := &g.Processes[j]
			user, lease := userOf[p.Lease], text(p.Lease)
			switch {
			case p.Kind == "mps-server":
				lease = cell{"(MPS server)", faint}
			case p.Lease == "":
				user, lease = m.outsideUser(g.UUID, p.PID), cell{"outside of leases", warning}
			}
			var used *float64
			memory := cell{"-", faint}
			if p.Memory != nil {
				used, memory = new(float64(*p.Memory)), text(gib(*p.Memory))
			}
			t.rows = append(t.rows, row{
				id:    fmt.Sprintf("%s %d", g.UUID, p.PID),
				lease: p.Lease,
				search: strings.Join(
					[]string{"gpu" + index(g.Index), fmt.Sprint(p.PID), user, p.Tenant, p.Lease, lease.text, p.Command},
					" ",
				),
				cells: []cell{
					text(index(g.Index)), text(fmt.Sprint(p.PID)), text(dash(user)), memory, text(p.Kind), text(dash(p.Tenant)), lease,
					text(dash(p.Command)),
				},
				by: []rank{{number: used}, {text: user}},
			})
		}
	}
	return t
}

// outsideUser is the user of a process outside of leases; empty if it is not known.
func (m *Model) outsideUser(gpu string, pid int) string {
	if m.last.Idle == nil {
		return ""
	}
	for i := range m.last.Idle.Uses {
		if u := &m.last.Idle.Uses[i]; u.Lease == "" && u.GPU == gpu && slices.Contains(u.PIDs, pid) {
			return u.User
		}
	}
	return ""
}
