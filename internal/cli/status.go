package cli

import (
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) statusCommand() *cobra.Command {
	var exitCode bool
	var o view
	c := &cobra.Command{
		Use:   "status",
		Short: "Show GPUs, tenants and leases as they are now",
		Args:  noArgs,
		Long: `Status shows the GPUs, tenants and leases as they are now. --tenant, --gpu, --user and --mine
restrict it to leases, and to the GPUs, tenants and conditions that belong to them. On a terminal
the columns fit its width, from 80 to 200 characters; where programs read it, nothing is cut.`,
		Example: "  gpushare status\n  gpushare status --mine --sort memory\n  gpushare status --tenant vision --gpu 0\n  gpushare status --user alice -o name\n" +
			"  gpushare status --json | jq '.gpus[].memory'\n  gpushare status --exit-code   # 6 when something is degraded\n  gpushare status --host node[01-16]   # one row for each GPU of these hosts",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(a.json); err != nil {
				return err
			}
			s, err := a.client.StatusNow(cmd.Context())
			if err == nil {
				err = a.selectPart(cmd.Context(), s, &o)
			}
			if err != nil {
				return err
			}
			switch {
			case a.json || o.output == "json":
				err = a.printJSON(s)
			case o.output == "name":
				a.leaseNames(s.Leases)
			default:
				a.status(s, &o)
			}
			if err == nil && exitCode && len(unacknowledged(s.Node.Conditions)) > 0 {
				return &exitError{code: api.ExitDegraded}
			}
			return err
		},
	}
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 6 when something that it shows is degraded and not acknowledged")
	a.viewFlags(c, &o)
	return c
}

func (a *app) status(s *api.Status, o *view) {
	width := o.width(a.io.Out)
	a.statusHead(s, width)
	fmt.Fprintln(a.io.Out)
	a.gpus(s, width, o.output == "wide")
	if len(s.Tenants) > 0 {
		fmt.Fprintln(a.io.Out)
		a.tenants(s.Tenants)
	}
	if len(s.Leases) > 0 {
		fmt.Fprintln(a.io.Out)
		a.statusLeases(s, width, o.output == "wide", false)
	} else if o.selective() {
		fmt.Fprintln(a.io.Out, "\nno leases")
	}
	a.users(s.Users)
}

// leaseNames prints the ids of leases, one a line.
func (a *app) leaseNames(leases []api.Lease) {
	for i := range leases {
		fmt.Fprintln(a.io.Out, leases[i].ID)
	}
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

func (a *app) statusHead(s *api.Status, width int) {
	n := &s.Node
	head := []string{n.Host}
	switch {
	case n.Unmanaged != nil:
		head = append(
			head, fmt.Sprintf("generation %d", n.Generation),
			fmt.Sprintf("unmanaged by %s, %s: nothing is enforced", n.Unmanaged.By, n.Unmanaged.At.Local().Format(time.DateTime)),
		)
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
	at := ""
	for _, part := range head {
		if at != "" && width > 0 && utf8.RuneCountInString(at+" · "+part) > width {
			fmt.Fprintln(a.io.Out, at+" ·")
			at = "  " + part
			continue
		}
		if at != "" {
			at += " · "
		}
		at += part
	}
	fmt.Fprintln(a.io.Out, at)
	if len(n.ClosedTo) > 0 {
		closed := make([]string, len(n.ClosedTo))
		for i, cg := range n.ClosedTo {
			closed[i] = path.Base(cg)
		}
		fmt.Fprintf(a.io.Out, "managed GPUs are closed outside leases to %s\n", strings.Join(closed, ", "))
	}
	a.conditions(s, width)
}

// unacknowledged are the conditions that no administrator acknowledged.
func unacknowledged(all []api.Condition) []api.Condition {
	var out []api.Condition
	for i := range all {
		if all[i].Acknowledged == nil {
			out = append(out, all[i])
		}
	}
	return out
}

// shownAlike is how many conditions with the same hint are shown, so that the GPUs below stay visible.
const shownAlike = 6

// conditions prints the conditions, and the hint of consecutive ones only once.
func (a *app) conditions(s *api.Status, width int) {
	news := unacknowledged(s.Node.Conditions)
	if n := len(s.Node.Conditions) - len(news); n > 0 {
		defer func() {
			fmt.Fprintf(a.io.Out, "%s: 'gpushare condition list'\n", text.Count(n, "acknowledged condition"))
		}()
	}
	for rest := news; len(rest) > 0; {
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
			a.wrapped(a.paint(yellow, "!")+" ", sentence(conditionText(s, &show[i])), width)
		}
		if more := n - len(show); more > 0 {
			fmt.Fprintf(a.io.Out, "%s and %d more of these: 'gpushare status --json' lists all\n", a.paint(yellow, "!"), more)
		}
		if alike[0].Hint != "" {
			a.wrapped("  ", sentence(alike[0].Hint), width)
		}
	}
}

// wrapped prints a text after a prefix of two characters, within the width of a terminal.
func (a *app) wrapped(prefix, s string, width int) { a.hanging(prefix, "  ", s, width) }

// hanging prints a text within the width of a terminal: its first line after a prefix, the others after as many spaces.
func (a *app) hanging(prefix, spaces, s string, width int) {
	for _, l := range strings.Split(s, "\n") {
		parts := []string{l}
		if width > 0 && len(spaces)+utf8.RuneCountInString(l) > width {
			parts = wrap(l, width-len(spaces))
		}
		for _, p := range parts {
			fmt.Fprintln(a.io.Out, prefix+p)
			prefix = spaces
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
				where = gpuName(s.GPUs[i].Index, s.GPUs[i].UUID)
			}
		}
	}
	if where == "" || strings.HasPrefix(c.Message, where) || strings.Contains(c.Message, " "+where+" ") {
		return c.Message
	}
	return where + ": " + c.Message
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
