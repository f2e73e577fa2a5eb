package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// statusLeases prints the leases with their GPU, tenant and user.
func (a *app) statusLeases(s *api.Status, width int, wide bool) {
	columns := []column{
		{head: "LEASE", min: 12, want: 24, middle: true},
		{head: "STATE"},
		{head: "TENANT", min: 6},
		{head: "USER", min: 5},
		{head: "GPU"},
		{head: "GPU MEMORY"},
		{head: "SHARE", drop: 3},
		{head: "PID", drop: 1},
		{head: "COMMAND", min: 12, drop: 2},
		{head: "DEVICE"},
	}
	at := now()
	var rows []line
	for i := range s.Leases {
		l := &s.Leases[i]
		name := command(l.Command)
		share := shortShare(l.Share)
		device := ""
		if wide {
			name, share, device = strings.Join(l.Command, " "), leaseShare(l.Share), strings.Join(l.Devices, " ")
		}
		used, note := l.GPUMemory, waitText(l)
		if l.Ended != nil {
			note = l.Reason
		}
		if l.Position > 0 {
			note = fmt.Sprintf("position %d", l.Position) + join(": ", note)
		}
		if used != nil && used.LastKnown != nil {
			known := *used
			known.LastKnown, used = nil, &known
			if old := age(at.Sub(*l.GPUMemory.LastKnown)); old != "" {
				note = strings.TrimPrefix(note+"; memory as of "+old+" ago", "; ")
			}
		}
		rows = append(rows, line{
			[]string{l.ID, leaseState(l), l.Tenant, dash(l.User), place(s, l), leaseMemory(used), share, pid(l.PID), name, device},
			note,
		})
	}
	for i := range rows[:len(rows)-1] {
		if rows[i].note == rows[i+1].note { // It is printed once, below the last of them.
			rows[i].note = ""
		}
	}
	a.fit(width, columns, rows)
}

// leaseState is the state of a lease, or what is more urgent.
func leaseState(l *api.Lease) string {
	switch {
	case l.Result != "":
		return l.Result
	case l.Position > 0:
		return "waiting"
	case l.GPUMemory != nil && l.GPUMemory.Stage != "":
		return stage(l.GPUMemory.Stage)
	}
	return l.State
}

// place is on which GPU a lease is, by its index, and in which MIG instance.
func place(s *api.Status, l *api.Lease) string {
	var on []string
	for i := range s.GPUs {
		g := &s.GPUs[i]
		name, found := gpuColumn(g.Index), slices.Contains(l.GPUs, g.UUID) || slices.Contains(l.Devices, g.UUID)
		if g.MIG != nil {
			for j := range g.MIG.Instances {
				in := &g.MIG.Instances[j]
				if in.Lease == l.ID || slices.Contains(in.Leases, l.ID) {
					name, found = fmt.Sprintf("%s %s@%d", gpuColumn(g.Index), in.Profile, in.Placement.Start), true
				}
			}
		}
		if found {
			on = append(on, name)
		}
	}
	return dash(strings.Join(on, " "))
}

// shortShare is what was measured, and what is due.
func shortShare(s *api.LeaseShare) string {
	if s == nil {
		return "-"
	}
	due := s.Entitled
	if s.Due != nil {
		due = *s.Due
	}
	out := percent(due)
	if s.Busy != nil && s.StdErr != nil {
		out = fmt.Sprintf("%.0f±%.0f%%, due %s", *s.Busy, *s.StdErr, out)
	}
	switch {
	case s.Advisory:
		out += " (advisory)"
	case !s.Enforced:
		out += " (not enforced)"
	}
	return out
}
