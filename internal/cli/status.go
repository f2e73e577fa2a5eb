package cli

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) statusCommand() *cobra.Command {
	var exitCode bool
	c := &cobra.Command{
		Use: "status", Short: "Show GPUs, tenants and leases as they are now", Args: noArgs,
		Example: "  gpushare status\n  gpushare status --json | jq '.gpus[].memory'\n  gpushare status --exit-code   # 6 when something is degraded",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.client.Status(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(s)
			} else {
				a.status(s)
			}
			if err == nil && exitCode && len(s.Node.Conditions) > 0 {
				return &exitError{code: api.ExitDegraded}
			}
			return err
		},
	}
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 6 when something is degraded")
	return c
}

func (a *app) status(s *api.Status) {
	a.statusHead(s)
	fmt.Fprintln(a.io.Out)
	a.gpus(s)
	if len(s.Tenants) > 0 {
		fmt.Fprintln(a.io.Out)
		a.tenants(s.Tenants)
	}
	if len(s.Leases) > 0 {
		fmt.Fprintln(a.io.Out)
		a.leases(s.Leases)
	}
	a.users(s.Users)
}

// users prints what users have of the limits of each user, if there are any.
func (a *app) users(users []api.UserStatus) {
	rows := [][]string{{"USER", "LEASES", "GPU MEMORY GRANTED"}}
	for _, u := range users {
		leases, memory := fmt.Sprint(u.Leases), api.Bytes(u.GPUMemory.Granted).Short()
		if u.MaxLeases > 0 {
			leases += fmt.Sprintf(" of %d", u.MaxLeases)
		}
		if u.GPUMemory.Limit > 0 {
			memory += " of " + api.Bytes(u.GPUMemory.Limit).Short()
		}
		if u.MaxLeases > 0 || u.GPUMemory.Limit > 0 {
			rows = append(rows, []string{u.User, leases, memory})
		}
	}
	if len(rows) > 1 {
		fmt.Fprintln(a.io.Out)
		a.table(rows)
	}
}

func (a *app) statusHead(s *api.Status) {
	n := &s.Node
	head := []string{n.Host}
	switch {
	case n.Unmanaged != nil:
		head = append(head, fmt.Sprintf("generation %d", n.Generation), fmt.Sprintf("unmanaged by %s, %s: nothing is enforced", n.Unmanaged.By, n.Unmanaged.At.Local().Format(time.DateTime)))
	case n.Generation == 0:
		head = append(head, "no spec applied yet")
	case n.Enforce == "on":
		head = append(head, fmt.Sprintf("generation %d", n.Generation), "enforcing")
	default:
		head = append(head, fmt.Sprintf("generation %d", n.Generation), "observing only: nothing is enforced")
	}
	if n.Driver != "" {
		head = append(head, "driver "+n.Driver)
	}
	head = append(head, n.Adapter)
	if n.Operation != "" {
		head = append(head, "changing: "+n.Operation)
	}
	fmt.Fprintln(a.io.Out, strings.Join(head, " · "))
	if len(n.ClosedTo) > 0 {
		closed := make([]string, len(n.ClosedTo))
		for i, cg := range n.ClosedTo {
			closed[i] = path.Base(cg)
		}
		fmt.Fprintf(a.io.Out, "managed GPUs are closed outside leases to %s\n", strings.Join(closed, ", "))
	}
	a.conditions(s)
}

// shownAlike is how many conditions with the same hint are shown, so that the GPUs below stay visible.
const shownAlike = 6

// conditions prints the conditions, and the hint of consecutive ones only once.
func (a *app) conditions(s *api.Status) {
	for rest := s.Node.Conditions; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Kind == rest[0].Kind && rest[n].Hint == rest[0].Hint {
			n++
		}
		alike := rest[:n]
		rest = rest[n:]
		show := alike
		if n > shownAlike+1 { // "and one more" would take the line of that one.
			show = alike[:shownAlike]
		}
		for i := range show {
			fmt.Fprintf(a.io.Out, "%s %s\n", a.paint(yellow, "!"), sentence(conditionText(s, &show[i])))
		}
		if more := n - len(show); more > 0 {
			fmt.Fprintf(a.io.Out, "%s and %d more of these: 'gpushare status --json' lists all\n", a.paint(yellow, "!"), more)
		}
		if alike[0].Hint != "" {
			fmt.Fprintf(a.io.Out, "  %s\n", sentence(alike[0].Hint))
		}
	}
}

// conditionText adds the GPU or tenant of a condition if its message does not name it.
func conditionText(s *api.Status, c *api.Condition) string {
	where := c.Tenant
	if c.GPU != "" {
		where = shortUUID(c.GPU)
		for i := range s.GPUs {
			if s.GPUs[i].UUID == c.GPU {
				where = fmt.Sprintf("GPU %d", s.GPUs[i].Index)
			}
		}
	}
	if where == "" || strings.HasPrefix(c.Message, where) || strings.Contains(c.Message, " "+where+" ") {
		return c.Message
	}
	return where + ": " + c.Message
}

func (a *app) gpus(s *api.Status) {
	if len(s.GPUs) == 0 {
		fmt.Fprintln(a.io.Out, "no GPUs")
		return
	}
	rows := [][]string{{"GPU", "MODEL", "MODE", "MEMORY", "BUSY", "STATE", ""}}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		rows = append(rows, []string{
			fmt.Sprint(g.Index), strings.TrimPrefix(g.Model, "NVIDIA "), g.Mode, memory(g.Memory), busy(g.Utilization), g.State, gpuNote(g),
		})
		if g.MIG == nil {
			continue
		}
		for _, in := range g.MIG.Instances {
			note := dash(in.Lease)
			switch {
			case in.Foreign:
				note = "foreign: not created by gpushare"
			case len(in.UUIDs) == 0:
				note = "orphan: no compute instance"
			case in.Lease == "":
				note = "free"
			}
			rows = append(rows, []string{"", fmt.Sprintf("  %s at %d", in.Profile, in.Placement.Start), "", memory(in.Memory), "", "", note})
		}
	}
	a.table(rows)
}

func busy(u *int) string {
	if u == nil {
		return "-"
	}
	return fmt.Sprintf("%d%%", *u)
}

func gpuState(g *api.GPUStatus) string {
	if g.Reason != "" {
		return g.State + ": " + g.Reason
	}
	return g.State
}

// pendingMode describes a MIG mode that was set and is not active yet.
func pendingMode(m *api.MIGStatus) string {
	if m.Pending {
		return "MIG mode is off; on is pending"
	}
	return "MIG mode is on; off is pending"
}

func gpuNote(g *api.GPUStatus) string {
	notes := []string{}
	if g.Reason != "" {
		notes = append(notes, g.Reason)
	}
	if g.Owner != "" {
		notes = append(notes, "managed by "+g.Owner)
	}
	if m := g.MIG; m != nil && m.Enabled != m.Pending {
		notes = append(notes, pendingMode(m))
	}
	if m := g.MPS; m != nil {
		n := "MPS " + m.State
		if m.State == "running" {
			n += ", " + clients(m) + " " + text.Plural(max(m.Clients, m.MaxClients), "client")
		}
		if m.Reason != "" {
			n += ": " + m.Reason
		}
		notes = append(notes, n)
	}
	if t := g.TimeSlices; t != nil && t.IdleWhileWaiting != nil {
		notes = append(notes, "idle for "+percent(*t.IdleWhileWaiting)+" of the time while a lease waited")
	}
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
