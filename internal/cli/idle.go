package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// defaultIdle is how long GPU memory was not used before it is listed: programs load data, and people think.
const defaultIdle = api.Duration(time.Minute)

func (a *app) idleCommand() *cobra.Command {
	var least *api.Duration
	c := &cobra.Command{
		Use:   "idle [flags]",
		Short: "Show who holds GPU memory and does not use it",
		Args:  noArgs,
		Long: `Idle lists leases, and processes outside of leases, that hold GPU memory and whose kernels have not
run for a while: whose they are, on which GPU, how much they hold, and since when. For a lease it prints
the command that ends it. The time is measured: what was not measured does not count, and a GPU whose use
by process is not reported, as of MIG instances before Hopper, is unknown and never idle.

HOLDS is what others do not get for it: the whole GPU, the MIG instance, the limit of the grant, or outside
of leases what is used. Members see the leases of their own tenants, and their own processes.`,
		Example: "  gpushare idle\n  gpushare idle --for 2h\n  gpushare idle --json\n  gpushare idle --host gpu1,gpu2 --for 2h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := a.client.Idle(cmd.Context())
			if err != nil {
				return err
			}
			at := defaultIdle
			if least != nil {
				at = *least
			}
			if a.json {
				return a.printJSON(i)
			}
			a.idle(i, at)
			return nil
		},
	}
	c.Flags().Var(duration{&least}, "for", "idle for at least this long, as in 10m or 2h (default 1m)")
	return c
}

// idle prints who does not use what they hold, what is not measured, and the commands that end leases.
func (a *app) idle(i *api.Idle, least api.Duration) {
	columns := []column{
		{head: "LEASE", min: 12, want: 24, middle: true},
		{head: "TENANT", min: 6, drop: 2},
		{head: "USER", min: 5},
		{head: "JOB", min: 8, drop: 4, middle: true},
		{head: "ACCOUNT", drop: 3},
		{head: "GPU"},
		{head: "HOLDS"},
		{head: "USES"},
		{head: "IDLE"},
		{head: "SINCE", drop: 1},
	}
	var rows []line
	var stops []string
	unknown, others := map[string][]string{}, 0
	for k := range i.Uses {
		h := &i.Uses[k]
		switch {
		case h.State == api.UseUnknown:
			unknown[h.Reason] = append(unknown[h.Reason], useName(h)+" on GPU "+gpuColumn(h.Index)+" holds "+gib(h.Held))
			continue
		case h.State != api.UseIdle || h.IdleSeconds == nil || seconds(*h.IdleSeconds) < time.Duration(least):
			others++
			continue
		}
		rows = append(rows, idleRow(h, i.At))
		if h.Stop != "" && !slices.Contains(stops, h.Stop) {
			stops = append(stops, h.Stop)
		}
	}
	if len(rows) > 0 {
		a.fit(columnsOf(a.io.Out), columns, rows)
	} else {
		fmt.Fprintf(a.io.Out, "nothing that is measured was idle for %s\n", least)
	}
	if others > 0 && len(rows) > 0 {
		fmt.Fprintf(a.io.Out, "%s used within the last %s\n", text.Count(others, "other"), least)
	}
	for _, reason := range sortedReasons(unknown) {
		a.wrapped("", "unknown: "+printable(reason)+": "+printable(strings.Join(unknown[reason], "; ")), columnsOf(a.io.Out))
	}
	if len(stops) > 0 {
		fmt.Fprintln(a.io.Out, "\nthese commands end the leases, the longest idle first:")
		for _, s := range stops {
			fmt.Fprintln(a.io.Out, "  "+printable(s))
		}
	}
}

func idleRow(h *api.IdleUse, now time.Time) line {
	uses, since := "unknown", "-"
	if h.Used != nil {
		uses = gib(*h.Used)
	}
	if h.IdleSince != nil {
		since = atTime(*h.IdleSince, now)
	}
	lease, note := h.Lease, ""
	if lease == "" {
		lease, note = "-", "outside of leases: "+pidList(h.PIDs)
	}
	return line{
		[]string{
			lease,
			dash(h.Tenant),
			dash(h.User),
			h.Job,
			h.Account,
			gpuColumn(h.Index),
			gib(h.Held),
			uses,
			text.Age(seconds(*h.IdleSeconds)),
			since,
		},
		note,
	}
}

// useName names a lease, or a user outside of leases.
func useName(h *api.IdleUse) string {
	if h.Lease != "" {
		return h.Lease
	}
	return dash(h.User) + " (" + pidList(h.PIDs) + ")"
}

// mostPIDs is how many processes are named.
const mostPIDs = 4

func pidList(pids []int) string {
	var words []string
	for _, p := range pids[:min(len(pids), mostPIDs)] {
		words = append(words, strconv.Itoa(p))
	}
	out := text.Plural(len(pids), "pid") + " " + strings.Join(words, ", ")
	if n := len(pids) - len(words); n > 0 {
		out += fmt.Sprintf(" and %d more", n)
	}
	return out
}

func sortedReasons(m map[string][]string) []string {
	var out []string
	for reason := range m {
		out = append(out, reason)
	}
	slices.Sort(out)
	return out
}

func seconds(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }

// atTime is a time for people: only the clock if it is today.
func atTime(at, now time.Time) string {
	at, now = at.Local(), now.Local()
	if at.YearDay() == now.YearDay() && at.Year() == now.Year() {
		return at.Format("15:04")
	}
	return at.Format(text.Minutes)
}
