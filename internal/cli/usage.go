package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) usageCommand() *cobra.Command {
	var since, until, step, plot, month, output string
	var by []string
	var table bool
	c := &cobra.Command{
		Use:   "usage [flags]",
		Short: "Show what leases used: GPU time, GPU memory, waits, exit codes",
		Args:  noArgs,
		Long: `Usage adds up the account of the node, in whole hours and in UTC days. Members see their
own tenants. GPU-HOURS is the time for which leases had a GPU × their part of it, CAPACITY that as part
of what there is (with --by gpu of that GPU), IDLE the part of the held time in which no kernel ran,
CHARGED the time for which they were charged, BUSY that in which their kernels ran, with one standard
error. JSON and CSV have the exact seconds: there the total is exactly the sum of the rows; what was used
outside of leases is not in it, and in the CSV in columns of its own, outside_*. Records are kept
for 35 days; of the 400 days before them only the sums by tenant, user, account and GPU.

--month YYYY-MM shows one month in UTC, and with -o md as a report in Markdown, which can be mailed.

--plot draws the time instead: what each tenant was charged, in which its kernels ran, its GPU memory
and its waiting requests, as means of steps. With a file (NAME.svg or NAME.png) it makes an image. A
link, a pipe or a device at the name is refused.`,
		Example: "  gpushare usage\n  gpushare usage --since 36h --by user\n  gpushare usage --since 30d --until 7d --by tenant,gpu --csv\n  gpushare usage --month 2026-02 -o md\n  gpushare usage --plot\n  gpushare usage --since 30d --plot month.svg\n  gpushare usage --host @hosts --since 30d --by account",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.json && table {
				return usageError{err: fmt.Errorf("cannot print JSON and CSV at once"), hint: "write one of --json and --csv"}
			}
			if err := a.usageOutput(cmd, output, &table); err != nil {
				return err
			}
			if err := timeOfUsage(cmd, month, &since, &until); err != nil {
				return err
			}
			if output == "md" || month != "" && !cmd.Flags().Changed("by") {
				by = []string{api.ByTenant, api.ByUser, api.ByGPU}
			}
			switch {
			case cmd.Flags().Changed("plot"):
				if a.json || table || cmd.Flags().Changed("by") {
					return usageError{
						err:  errors.New("cannot plot with --json, --csv or --by"),
						hint: "'gpushare usage --step 1h --json' has the values of a plot",
					}
				}
				return a.usagePlot(cmd.Context(), since, until, step, plot)
			case step != "" && !a.json:
				return usageError{err: errors.New("--step needs --plot or --json"), hint: "'gpushare usage --plot' draws the steps"}
			}
			u, err := a.client.Usage(cmd.Context(), since, until, step, by)
			if err != nil {
				return err
			}
			switch {
			case a.json:
				return a.printJSON(u)
			case table:
				return a.usageCSV(u)
			case output == "md":
				a.usageReport(u, month)
				return nil
			}
			a.usage(u, month != "")
			return nil
		},
	}
	c.Flags().StringVar(&since, "since", "7d", "begin: 1m to 435d ago, as in 36h or 7d, or a date (UTC) as in 2026-02-01")
	c.Flags().StringVar(&until, "until", "", "end, in the same form (default now)")
	c.Flags().StringSliceVar(&by, "by", []string{api.ByTenant}, "one row for each: tenant, user, gpu, lease, account, job, or several")
	c.Flags().StringVar(&month, "month", "", "one month in UTC, as in 2026-11, instead of --since and --until")
	c.Flags().StringVarP(&output, "output", "o", "", "md: a report by tenant, user and GPU in Markdown; csv; json")
	_ = c.RegisterFlagCompletionFunc(
		"output", cobra.FixedCompletions(usageOutputs, cobra.ShellCompDirectiveNoFileComp),
	) // It fails only for a flag that does not exist.
	c.Flags().BoolVar(&table, "csv", false, "print CSV (RFC 4180) with a header, without the total")
	c.Flags().StringVar(
		&step, "step", "", "with --plot or --json: length of a step in whole hours, as in 1h or 1d (default for --plot: by the time)",
	)
	c.Flags().StringVar(
		&plot, "plot", "",
		"draw the time in the terminal, or into this file (NAME.svg or NAME.png; --plot alone or --plot=-: the terminal)",
	)
	c.Flags().Lookup("plot").NoOptDefVal = "-"
	_ = c.MarkFlagFilename("plot", "svg", "png") // It fails only for a flag that does not exist.
	return c
}

// usageOutput reads --output, which says what --json and --csv say too.
func (a *app) usageOutput(cmd *cobra.Command, output string, table *bool) error {
	switch {
	case output == "":
		return nil
	case !slices.Contains(usageOutputs, output):
		return usageError{err: fmt.Errorf("--output %q is unknown", output), hint: "it is one of " + strings.Join(usageOutputs, ", ")}
	case a.json && output != "json" || *table && output != "csv" || cmd.Flags().Changed("plot"):
		return usageError{err: errors.New("--output excludes --json, --csv and --plot"), hint: "write one of them"}
	}
	a.json, *table = a.json || output == "json", *table || output == "csv"
	return nil
}

// usage prints a table in hours. JSON and CSV have the exact seconds. The times have their zone, because a date is one of UTC.
func (a *app) usage(u *api.Usage, month bool) {
	since, until := u.Since.In(zone()), u.Until.In(zone())
	if month {
		since, until = u.Since.UTC(), u.Until.UTC() // Its first day is one of UTC.
	}
	fmt.Fprint(a.io.Out, text.Between(since, until))
	if c := u.Capacity; c != nil {
		fmt.Fprintf(a.io.Out, ", capacity %s GPU-hours of %s", hours(c.GPUSeconds), text.Count(c.GPUs, "GPU"))
	}
	fmt.Fprint(a.io.Out, "\n\n")
	columns := usageTable(u.By)
	rows := make([]line, 0, len(u.Rows)+1)
	for i := range u.Rows {
		if r := &u.Rows[i]; len(u.By) > 0 {
			rows = append(rows, line{append(usageKeys(u, r), usageCells(u, r)...), ""})
		}
	}
	total := make([]string, max(1, len(u.By)))
	total[0] = "total"
	whole := *u
	whole.By = nil
	rows = append(rows, line{append(total, usageCells(&whole, &u.Total)...), ""})
	a.fit(columnsOf(a.io.Out), columns, rows)
	if o := u.Outside; o != nil {
		fmt.Fprintln(a.io.Out, "\noutside of leases")
		var rows []line
		for _, cells := range outsideRows(o.Rows, true) {
			rows = append(rows, line{cells: cells})
		}
		a.fit(columnsOf(a.io.Out), outsideTable, rows)
	}
	for _, n := range usageNotes(u) {
		fmt.Fprintln(a.io.Out, n)
	}
}

// outsideTable are the columns of what was used outside of leases.
var outsideTable = []column{
	{
		head: "USER",
		min:  5,
	},
	{head: "GPU"},
	{head: "HOURS ON GPUS"},
	{head: "IDLE"},
	{head: "BUSY (h)"},
	{head: "GiB-HOURS"},
	{head: "PEAK", drop: 1},
}

// usageTable are the columns of the table.
func usageTable(by []string) []column {
	var out []column
	for _, key := range by {
		out = append(out, column{head: strings.ToUpper(key), min: 5})
	}
	if len(by) == 0 {
		out = append(out, column{})
	}
	return append(
		out,
		column{head: "GPU-HOURS"},
		column{head: "CAPACITY"},
		column{head: "IDLE"},
		column{head: "GiB-HOURS"},
		column{head: "PEAK", drop: 5},
		column{
			head: "BUSY (h)",
		},
		column{head: "CHARGED (h)", drop: 4},
		column{head: "WAITED (h)", drop: 3},
		column{head: "LONGEST (h)", drop: 2},
		column{head: "STARTED", drop: 7},
		column{head: "ENDED", drop: 6},
		column{head: "EXIT CODES", drop: 1},
	)
}

// usageKeys are the cells of a row's keys.
func usageKeys(u *api.Usage, r *api.UsageRow) []string {
	var keys []string
	for _, c := range keyColumns {
		switch {
		case !slices.Contains(u.By, c.name):
		case c.name == api.ByGPU && r.GPU != "":
			keys = append(keys, gpuOf(r))
		default:
			keys = append(keys, dash(c.value(r)))
		}
	}
	return keys
}

func usageCells(u *api.Usage, r *api.UsageRow) []string {
	charged, busy := "-", "-"
	if r.OccupancyMeasuredSeconds > 0 {
		charged = hours(r.OccupancySeconds)
	}
	if r.BusyMeasuredSeconds > 0 {
		busy = hours(r.BusySeconds) + "±" + hours(r.BusyStdErrorSeconds)
	}
	return []string{
		gpuHours(r), capacityPart(u, r, slices.Contains(u.By, api.ByGPU)), idlePart(r), gibHours(r), peakOf(r), busy, charged,
		hours(r.QueueWaitSeconds), hours(r.QueueWaitLongestSeconds),
		strconv.FormatInt(r.LeasesStarted, 10), strconv.FormatInt(r.LeasesEnded, 10), dash(exitCodes(r.ExitCodes)),
	}
}

// notMeasured says of how much of the held time what is not known, if that is 1 % or more, and can be read in hours.
func notMeasured(total *api.UsageRow) []string {
	var out []string
	for _, m := range []struct {
		name  string
		known api.Thousandths
	}{
		{"busy time", total.BusyMeasuredSeconds},
		{"GPU memory", total.GPUMemoryMeasuredSeconds},
		{"occupancy", total.OccupancyMeasuredSeconds},
		{"the part of the GPU", total.GPUMeasuredSeconds},
		{"idle time", total.HeldIdleMeasuredSeconds},
	} {
		if missing := total.HeldSeconds - m.known; hours(missing) != hours(0) && missing >= total.HeldSeconds/100 {
			out = append(out, m.name+" of "+hours(missing))
		}
	}
	return out
}

func lostRecords(to io.Writer, u *api.Usage) {
	if line := lost(u); line != "" {
		fmt.Fprintln(to, line)
	}
}

// lost says how many records are missing.
func lost(u *api.Usage) string {
	if u.LostRecords == 0 {
		return ""
	}
	return fmt.Sprintf("%d records of this time were lost: the sums may be too low", u.LostRecords)
}

// exitCodes writes how many leases ended with which exit code, in the order of the codes.
func exitCodes(codes map[string]int64) string {
	names := make([]string, 0, len(codes))
	for name := range codes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y string) int {
		a, errA := strconv.Atoi(x)
		b, errB := strconv.Atoi(y)
		if errA != nil || errB != nil { // A word comes last.
			return cmp.Or(cmp.Compare(btoi(errA != nil), btoi(errB != nil)), cmp.Compare(x, y))
		}
		return cmp.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s:%d", name, codes[name])
	}
	return strings.Join(names, " ")
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
