package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// leaseTimes are the columns of 'lease list' that 'status' has not: since when, for how long, until when, and how long not used.
var leaseTimes = []column{
	{head: "STARTED", drop: 2},
	{head: "ELAPSED", drop: 7},
	{head: "LIMIT", drop: 6},
	{head: "IDLE", drop: 8},
	{head: "XID"},
}

// timesOf are the cells of leaseTimes.
func timesOf(l *api.Lease, at time.Time) []string {
	started, elapsed, limit, idle := "-", "-", "-", "-"
	end := at
	if l.Ended != nil {
		end = *l.Ended
	}
	switch {
	case l.ElapsedSeconds != nil:
		elapsed = text.Age(time.Duration(*l.ElapsedSeconds) * time.Millisecond)
	case l.Started != nil:
		elapsed = text.Age(end.Sub(*l.Started))
	}
	if l.Started != nil {
		started = atTime(*l.Started, at)
	}
	switch {
	case l.Ended != nil:
	case l.Expires != nil:
		limit = atTime(*l.Expires, at)
	case l.MaxTime != nil:
		limit = l.MaxTime.String()
	}
	switch {
	case l.IdleSeconds != nil:
		idle = text.Age(seconds(*l.IdleSeconds))
	case l.State == api.LeaseRunning:
		idle = "unknown"
	}
	return []string{started, elapsed, limit, idle, l.XIDNumbers()}
}

// lostGPUs says which of its GPUs a lease has lost, and since when.
func lostGPUs(l *api.Lease, name func(uuid string) string) (out []string) {
	for i := range l.LostGPUs {
		g := &l.LostGPUs[i]
		s := fmt.Sprintf("%s since %s: %s", name(g.GPU), g.Since.Local().Format(time.DateTime), g.Reason)
		if g.Until != nil {
			s = fmt.Sprintf(
				"%s from %s to %s: %s", name(g.GPU), g.Since.Local().Format(time.DateTime), g.Until.Local().Format(time.DateTime), g.Reason,
			)
		}
		out = append(out, s)
	}
	return out
}

// namesIn names the GPUs of a status.
func namesIn(s *api.Status) func(uuid string) string {
	return func(uuid string) string {
		for i := range s.GPUs {
			if s.GPUs[i].UUID == uuid {
				return gpuName(s.GPUs[i].Index, uuid)
			}
		}
		return shortUUID(uuid)
	}
}

// statusLeases prints the leases with their GPU, tenant and user, and with times with those of leaseTimes.
func (a *app) statusLeases(s *api.Status, width int, wide, times bool) {
	columns := []column{
		{head: "LEASE", min: 12, want: 24, middle: true},
		{head: "STATE"},
		{head: "TENANT", min: 6},
		{head: "USER", min: 5},
		{head: "JOB", min: 8, drop: 3, middle: true},
		{head: "ACCOUNT", drop: 2},
		{head: "GPU"},
		{head: "GPU MEMORY"},
		{head: "SHARE", drop: 4},
		{head: "PID", drop: 1},
		{head: "COMMAND", min: 12, drop: 3},
		{head: "DEVICE"},
	}
	const before = 9 // The times are before the process and its command.
	if times {
		columns[7].drop = 5 // 'status' has the memory.
		columns = slices.Insert(columns, before, leaseTimes...)
	}
	at := now()
	var rows []line
	for i := range s.Leases {
		l := &s.Leases[i]
		name := command(l.Command)
		share := shortShare(l.Share)
		if l.Share == nil && l.Use != nil && l.Use.Busy != nil {
			share = percent(*l.Use.Busy) + " busy" // of the instance that it has alone
		}
		device := ""
		if wide {
			name, device = strings.Join(l.Command, " "), strings.Join(l.Devices, " ")
			if l.Share != nil {
				share = leaseShare(l.Share)
			}
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
		job, account := "", ""
		if l.Engine != nil {
			job, account = l.Engine.Key, l.Engine.Account
			if name == job {
				name = "" // An engine that names no command has its key as one.
			}
		}
		cells := []string{
			l.ID,
			leaseState(l),
			l.Tenant,
			dash(l.User),
			job,
			account,
			place(s, l),
			leaseMemory(used),
			share,
			pid(l.PID),
			name,
			device,
		}
		if times {
			cells = slices.Insert(cells, before, timesOf(l, at)...)
		}
		rows = append(rows, line{cells, note})
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
	case l.Ended == nil && l.GPULost() != nil:
		return "GPU lost"
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
	return out + s.Qualifier()
}
