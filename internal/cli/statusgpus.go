package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// gpus prints one row for each GPU and each MIG instance.
func (a *app) gpus(s *api.Status, width int, wide bool) {
	if len(s.GPUs) == 0 {
		fmt.Fprintln(a.io.Out, "no GPUs")
		return
	}
	columns := []column{
		{head: "GPU"},
		{head: "MODEL", min: 20},
		{head: "MODE"},
		{head: "MEMORY"},
		{head: "BUSY"},
		{head: "STATE"},
		{head: "UUID"},
		{head: "PCI"},
	}
	at := now()
	common := ages(&s.GPUs[0], at)
	for i := range s.GPUs {
		if ages(&s.GPUs[i], at) != common {
			common = ""
		}
	}
	if common != "" && len(s.GPUs) > 1 {
		fmt.Fprintln(a.io.Out, "all GPUs "+common)
	} else {
		common = ""
	}
	var rows []line
	for i := range s.GPUs {
		g := &s.GPUs[i]
		note := gpuNote(g, unsaid(s, g))
		if age := ages(g, at); age != "" && common == "" {
			note = strings.TrimPrefix(note+"; "+age, "; ")
		}
		model := strings.TrimPrefix(g.Model, "NVIDIA ")
		if width > 0 && width < 100 {
			model = cut(model, 24, false) // so that notes have room
		}
		cells := []string{gpuColumn(g.Index), model, g.Mode, gpuMemory(g), busy(g.Utilization), g.State, "", ""}
		if wide {
			cells[6], cells[7] = g.UUID, g.PCI
		}
		rows = append(rows, line{cells, note})
		if g.MIG == nil {
			continue
		}
		for j := range g.MIG.Instances {
			in := &g.MIG.Instances[j]
			cells := []string{"", "  " + instanceName(in), "", memory(in.Memory), instanceBusy(in.Use), "", "", ""}
			if wide {
				cells[6] = strings.Join(in.UUIDs, " ")
			}
			rows = append(rows, line{cells, instanceNote(in)})
		}
	}
	a.fit(width, columns, rows)
}

func instanceName(in *api.InstanceStatus) string {
	return fmt.Sprintf("%s at %d", in.Profile, in.Placement.Start)
}

// instanceBusy is the part of the time in which something ran on an instance; "-" where that is not known.
func instanceBusy(u *api.InstanceUse) string {
	if u == nil || u.Busy == nil {
		return "-"
	}
	return percent(*u.Busy)
}

// useText is how an instance was used, in words.
func useText(u *api.InstanceUse) string {
	var parts []string
	add := func(v *float64, of string) {
		if v != nil {
			parts = append(parts, percent(*v)+of)
		}
	}
	add(u.Busy, " of the time busy")
	add(u.Multiprocessors, " of the multiprocessors")
	add(u.MemoryBandwidth, " of the memory bandwidth")
	return fmt.Sprintf("%s, in %.0f s", strings.Join(parts, ", "), u.IntervalSeconds)
}

// smallUse is the memory of an instance that a driver uses itself, with nothing in the instance.
const smallUse = 256 << 20

// instanceNote says what uses an instance. An instance without a lease is not "free": a process outside leases may use it.
func instanceNote(in *api.InstanceStatus) string {
	switch {
	case in.Foreign:
		return "foreign: not created by gpushare"
	case len(in.UUIDs) == 0:
		return "orphan: no compute instance"
	case len(in.Compute) > 0:
		used := 0
		for _, c := range in.Compute {
			if c.Lease != "" {
				used++
			}
		}
		return strings.TrimSpace(fmt.Sprintf("%d of %d compute instances leased  %s", used, len(in.Compute), strings.Join(in.Leases, " ")))
	case len(in.Leases) > 1:
		return strings.Join(in.Leases, " ")
	case in.Lease != "":
		return in.Lease
	case in.Memory.Used >= smallUse && in.MPS == nil:
		return "no lease, but " + gib(in.Memory.Used) + " in use"
	}
	return "no lease"
}

// gpuMemory is what is used of a GPU; of one that never answered it is unknown.
func gpuMemory(g *api.GPUStatus) string {
	if g.ReadAt == nil && g.Reason != "" && g.Memory.Used == 0 && g.Memory.Free == 0 {
		return "- / " + gib(g.Memory.Total)
	}
	return memory(g.Memory)
}

// now is the clock of the ages that are shown.
var now = time.Now

// zone is the reader's time zone.
var zone = func() *time.Location { return time.Local }

// ages is the age of what was read of a GPU, where that is not of this second.
func ages(g *api.GPUStatus, at time.Time) string {
	read, util, older := "", "", false
	if g.ReadAt != nil {
		read = age(at.Sub(*g.ReadAt))
	}
	if g.UtilizationReadAt != nil {
		util = age(at.Sub(*g.UtilizationReadAt))
		older = g.ReadAt != nil && g.ReadAt.Sub(*g.UtilizationReadAt) > time.Second
	}
	switch {
	case read != "" && util != "" && older:
		return "as of " + read + " ago, BUSY of " + util + " ago"
	case read != "":
		return "as of " + read + " ago"
	case util != "":
		return "BUSY as of " + util + " ago"
	}
	return ""
}

// age is a time in words, empty below one second.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return ""
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d h", d/time.Hour)
}

// reasonsOf are why a GPU is in its state, or closed as a whole.
func reasonsOf(g *api.GPUStatus) (out []string) {
	for i := range g.Closures {
		if c := &g.Closures[i]; c.Instance == nil && c.Tenant == "" && c.Kind != "changing" { // That is said by its state.
			out = append(out, c.Reason)
		}
	}
	switch {
	case g.Reason == "":
		return nil
	case strings.Join(out, "; ") != g.Reason: // It has more than the closures.
		return []string{g.Reason}
	}
	return out
}

// unsaid are the reasons that no condition has that is printed.
func unsaid(s *api.Status, g *api.GPUStatus) []string {
	shown := unacknowledged(s.Node.Conditions)
	return slices.DeleteFunc(reasonsOf(g), func(why string) bool {
		return slices.ContainsFunc(shown, func(c api.Condition) bool { return c.GPU == g.UUID && strings.Contains(c.Message, why) })
	})
}

// timeSliceNotes are what is to be known of the time slices of a GPU.
func timeSliceNotes(t *api.TimeSlices) (notes []string) {
	if t == nil {
		return nil
	}
	if t.Note != "" {
		notes = append(notes, t.Note)
	}
	if t.IdleWhileWaiting != nil && *t.IdleWhileWaiting >= 0.5 { // Less is written as 0 %.
		notes = append(notes, "idle for "+percent(*t.IdleWhileWaiting)+" of the time while a lease waited")
	}
	return notes
}

// gpuNote is what is to be known of a GPU next to its figures, after the reasons of its state.
func gpuNote(g *api.GPUStatus, reasons []string) string {
	notes := slices.Clone(reasons)
	if g.Owner != "" {
		notes = append(notes, ownerNote(g))
	}
	if m := g.MIG; m != nil && m.Enabled != m.Pending {
		notes = append(notes, pendingMode(m))
	}
	if m := g.MPS; m != nil {
		n := "MPS " + m.State
		if m.State == "running" {
			n += ", " + clients(m) + " " + text.Plural(max(m.Clients, m.MaxClients), "client")
		}
		if m.Reason != "" && m.Reason != g.Reason {
			n += ": " + m.Reason
		}
		notes = append(notes, n)
	}
	notes = append(notes, timeSliceNotes(g.TimeSlices)...)
	if g.Unattributed != nil && *g.Unattributed > 0 {
		notes = append(notes, gib(*g.Unattributed)+" in no process")
	}
	unattributed := 0
	for _, p := range g.Processes {
		if p.Lease == "" && p.Kind != "mps-server" {
			unattributed++
		}
	}
	if unattributed > 0 && g.Mode != api.ModeUnmanaged && g.Mode != api.ModeExternal {
		notes = append(notes, text.Count(unattributed, "process")+" outside any lease")
	}
	return strings.Join(notes, "; ")
}

// ownerNote says who places what runs on a GPU that gpushare does not place on.
func ownerNote(g *api.GPUStatus) string {
	switch {
	case g.Mode == api.ModeExternal:
		return "managed by " + g.Owner
	case len(g.ShareWith) > 0:
		return "placed by " + g.Owner + ", shared with " + strings.Join(g.ShareWith, ", ")
	}
	return "placed by " + g.Owner
}
