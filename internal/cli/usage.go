package cli

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) usageCommand() *cobra.Command {
	var since, until, step, plot string
	var by []string
	var table bool
	c := &cobra.Command{
		Use:   "usage [flags]",
		Short: "Show what leases used: GPU time, GPU memory, waits, exit codes",
		Args:  noArgs,
		Long: `Usage adds up the account of the node, in whole hours and in UTC days. Members see their
own tenants. HELD is the time for which leases had a GPU or their part of it, OCCUPANCY
that for which they were charged, BUSY that in which their kernels ran, with one standard
error. The total is exactly the sum of the rows. Records are kept for 35 days; of the 400
days before them only the sums by tenant, user and GPU.

--plot draws the time instead: what each tenant was charged, in which its kernels ran, its GPU memory
and its waiting requests, as means of steps. With a file (NAME.svg or NAME.png) it makes an image. A
link, a pipe or a device at the name is refused.`,
		Example: "  gpushare usage\n  gpushare usage --since 36h --by user\n  gpushare usage --since 30d --until 7d --by tenant,gpu --csv\n  gpushare usage --plot\n  gpushare usage --since 30d --plot month.svg",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.json && table {
				return usageError{err: fmt.Errorf("cannot print JSON and CSV at once"), hint: "write one of --json and --csv"}
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
			}
			a.usage(u)
			return nil
		},
	}
	c.Flags().StringVar(&since, "since", "7d", "begin: 1m to 435d ago, as in 36h or 7d, or a date as in 2026-02-01")
	c.Flags().StringVar(&until, "until", "", "end, in the same form (default now)")
	c.Flags().StringSliceVar(&by, "by", []string{api.ByTenant}, "one row for each: tenant, user, gpu, lease, or several of them")
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

// usageColumn is a column of the CSV. Its name has the unit.
type usageColumn struct {
	name  string
	value func(*api.UsageRow) string
}

// keyColumns are the columns of the keys, by name.
var keyColumns = []usageColumn{
	{api.ByTenant, func(r *api.UsageRow) string { return r.Tenant }},
	{api.ByUser, func(r *api.UsageRow) string { return r.User }},
	{api.ByGPU, func(r *api.UsageRow) string { return r.GPU }},
	{api.ByLease, func(r *api.UsageRow) string { return r.Lease }},
}

// usageColumns are the other columns. New ones are added at the end.
var usageColumns = []usageColumn{
	{"leases_started", func(r *api.UsageRow) string { return strconv.FormatInt(r.LeasesStarted, 10) }},
	{"leases_ended", func(r *api.UsageRow) string { return strconv.FormatInt(r.LeasesEnded, 10) }},
	{"held_seconds", func(r *api.UsageRow) string { return r.HeldSeconds.Fixed() }},
	{"occupancy_seconds", func(r *api.UsageRow) string { return r.OccupancySeconds.Fixed() }},
	{"occupancy_measured_seconds", func(r *api.UsageRow) string { return r.OccupancyMeasuredSeconds.Fixed() }},
	{"busy_seconds", func(r *api.UsageRow) string { return r.BusySeconds.Fixed() }},
	{"busy_std_error_seconds", func(r *api.UsageRow) string { return r.BusyStdErrorSeconds.Fixed() }},
	{"busy_measured_seconds", func(r *api.UsageRow) string { return r.BusyMeasuredSeconds.Fixed() }},
	{"gpu_memory_gib_seconds", func(r *api.UsageRow) string { return r.GPUMemoryGiBSeconds.Fixed() }},
	{"gpu_memory_measured_seconds", func(r *api.UsageRow) string { return r.GPUMemoryMeasuredSeconds.Fixed() }},
	{"gpu_memory_peak_bytes", func(r *api.UsageRow) string { return strconv.FormatUint(r.GPUMemoryPeak, 10) }},
	{"queue_wait_seconds", func(r *api.UsageRow) string { return r.QueueWaitSeconds.Fixed() }},
	{"queue_wait_longest_seconds", func(r *api.UsageRow) string { return r.QueueWaitLongestSeconds.Fixed() }},
	{"exit_codes", func(r *api.UsageRow) string { return exitCodes(r.ExitCodes) }},
}

func (a *app) usageCSV(u *api.Usage) error {
	columns := slices.DeleteFunc(slices.Clone(keyColumns), func(c usageColumn) bool { return !slices.Contains(u.By, c.name) })
	columns = append(columns, usageColumns...)
	w := csv.NewWriter(a.io.Out)
	w.UseCRLF = true
	line := make([]string, len(columns))
	for i := range columns {
		line[i] = columns[i].name
	}
	err := w.Write(line)
	for r := range u.Rows {
		for i := range columns {
			line[i] = columns[i].value(&u.Rows[r])
		}
		err = cmp.Or(err, w.Write(line))
	}
	w.Flush()
	if err = cmp.Or(err, w.Error()); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	lostRecords(a.io.Err, u)
	return nil
}

// usage prints a table. All three decimals are printed, so that the printed rows add up to the printed total.
func (a *app) usage(u *api.Usage) {
	fmt.Fprintf(a.io.Out, "%s to %s\n\n", u.Since.Local().Format(minutes), u.Until.Local().Format(minutes))
	var header []string
	for _, key := range u.By {
		header = append(header, strings.ToUpper(key))
	}
	if len(u.By) == 0 {
		header = append(header, "")
	}
	rows := [][]string{
		append(
			header, "HELD (s)", "OCCUPANCY (s)", "BUSY (s)", "GPU MEMORY (GiB·s)", "PEAK", "WAITED (s)", "LONGEST (s)", "STARTED",
			"ENDED", "EXIT CODES",
		),
	}
	for i := range u.Rows {
		r := &u.Rows[i]
		var keys []string
		for _, c := range keyColumns {
			if slices.Contains(u.By, c.name) {
				keys = append(keys, dash(c.value(r)))
			}
		}
		if len(u.By) > 0 {
			rows = append(rows, append(keys, usageCells(r)...))
		}
	}
	total := make([]string, max(1, len(u.By)))
	total[0] = "total"
	rows = append(rows, append(total, usageCells(&u.Total)...))
	a.table(rows)
	for _, line := range notMeasured(&u.Total) {
		fmt.Fprintln(a.io.Out, line)
	}
	lostRecords(a.io.Out, u)
}

// minutes is a time to the minute.
const minutes = "2006-01-02 15:04"

func usageCells(r *api.UsageRow) []string {
	occupancy, busy, memory, peak := "-", "-", "-", "-"
	if r.OccupancyMeasuredSeconds > 0 {
		occupancy = r.OccupancySeconds.Fixed()
	}
	if r.BusyMeasuredSeconds > 0 {
		busy = r.BusySeconds.Fixed() + "±" + r.BusyStdErrorSeconds.Fixed()
	}
	if r.GPUMemoryMeasuredSeconds > 0 {
		memory, peak = r.GPUMemoryGiBSeconds.Fixed(), gib(r.GPUMemoryPeak)
	}
	return []string{
		r.HeldSeconds.Fixed(), occupancy, busy, memory, peak, r.QueueWaitSeconds.Fixed(), r.QueueWaitLongestSeconds.Fixed(),
		strconv.FormatInt(r.LeasesStarted, 10), strconv.FormatInt(r.LeasesEnded, 10), dash(exitCodes(r.ExitCodes)),
	}
}

// notMeasured says of how much of the time nothing is known, if that is 1 % or more.
func notMeasured(total *api.UsageRow) []string {
	var out []string
	for _, m := range []struct {
		name  string
		known api.Thousandths
	}{
		{"the busy time", total.BusyMeasuredSeconds}, {"the GPU memory", total.GPUMemoryMeasuredSeconds}, {"the occupancy", total.OccupancyMeasuredSeconds},
	} {
		if missing := total.HeldSeconds - m.known; missing > 0 && missing >= total.HeldSeconds/100 {
			out = append(out, fmt.Sprintf("not measured: %s, for %s of %s s", m.name, missing.Fixed(), total.HeldSeconds.Fixed()))
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
