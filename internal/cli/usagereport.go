package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// usageOutputs are the values of --output of 'usage'.
var usageOutputs = []string{"md", "csv", "json"}

// monthOf is the time of a month in UTC, as --since and --until have it. A month that is not over has no end.
func monthOf(month string) (since, until string, err error) {
	at, err := time.Parse("2006-01", month)
	if err != nil {
		return "", "", usageError{err: fmt.Errorf("%q is no month", month), hint: "write it as in --month 2026-11"}
	}
	if at.After(now()) {
		return "", "", usageError{err: fmt.Errorf("%s has not begun", month), hint: "write a month that has, as in --month 2026-11"}
	}
	if next := at.AddDate(0, 1, 0); next.Before(now()) {
		until = next.Format(time.RFC3339)
	}
	return at.Format(time.RFC3339), until, nil
}

// timeOfUsage reads --month, which says what --since and --until say too.
func timeOfUsage(cmd *cobra.Command, month string, since, until *string) error {
	if month == "" {
		return nil
	}
	for _, f := range []string{"since", "until", "step", "plot"} {
		if cmd.Flags().Changed(f) {
			return usageError{err: errors.New("--month excludes --since, --until, --step and --plot")}
		}
	}
	var err error
	*since, *until, err = monthOf(month)
	return err
}

// usageReport prints a report in Markdown, which can be mailed: what was used by tenant, by user and by GPU, how much of what there is,
// what was held and not used, and what was used outside of leases.
func (a *app) usageReport(u *api.Usage, month string) {
	of := cmp.Or(u.Host, "this host")
	title := "GPU usage of " + of
	if at, err := time.Parse("2006-01", month); err == nil {
		title += ", " + at.Format("January 2006")
	}
	fmt.Fprintf(a.io.Out, "# %s\n\n", mdText(title))
	fmt.Fprintf(a.io.Out, "From %s.", text.Between(u.Since.UTC(), u.Until.UTC()))
	if c := u.Capacity; c != nil {
		fmt.Fprintf(
			a.io.Out,
			" Capacity: %d GPUs, %s GPU-hours; leases had %s of it.",
			c.GPUs,
			hours(c.GPUSeconds),
			partOf(u.Total.GPUSeconds, c.GPUSeconds),
		)
	}
	fmt.Fprintln(a.io.Out)
	for _, by := range []string{api.ByTenant, api.ByUser, api.ByGPU} {
		fmt.Fprintf(a.io.Out, "\n## By %s\n\n", map[string]string{api.ByGPU: "GPU"}[by]+strings.TrimSuffix(by, api.ByGPU))
		a.mdTable(reportHead(by), reportRows(u, sumBy(u.Rows, by), by))
	}
	if o := u.Outside; o != nil {
		fmt.Fprint(a.io.Out, "\n## Outside of leases\n\n")
		a.mdTable(outsideHead, outsideRows(sumBy(o.Rows, api.ByUser), false))
	}
	if notes := usageNotes(u); len(notes) > 0 {
		fmt.Fprintln(a.io.Out)
		for _, n := range notes {
			fmt.Fprintf(a.io.Out, "- %s\n", mdText(n))
		}
	}
}

// sumBy adds up rows by one key.
func sumBy(rows []api.UsageRow, by string) []api.UsageRow {
	sums := map[string]*api.UsageRow{}
	var keys []string
	for i := range rows {
		r := &rows[i]
		key := map[string]string{api.ByTenant: r.Tenant, api.ByUser: r.User, api.ByGPU: r.GPU}[by]
		s := sums[key]
		if s == nil {
			s = &api.UsageRow{}
			switch by {
			case api.ByTenant:
				s.Tenant = key
			case api.ByUser:
				s.User = key
			case api.ByGPU:
				s.GPU, s.GPUIndex = key, r.GPUIndex
			}
			sums[key] = s
			keys = append(keys, key)
		}
		addRow(s, r)
	}
	out := make([]api.UsageRow, len(keys))
	for i, key := range keys {
		out[i] = *sums[key]
	}
	if by == api.ByGPU {
		slices.SortStableFunc(out, func(a, b api.UsageRow) int { return cmp.Compare(indexOf(&a), indexOf(&b)) })
		return out
	}
	slices.SortStableFunc(out, func(a, b api.UsageRow) int {
		return cmp.Or(cmp.Compare(b.GPUSeconds, a.GPUSeconds), cmp.Compare(b.HeldSeconds, a.HeldSeconds))
	})
	return out
}

func indexOf(r *api.UsageRow) int {
	if r.GPUIndex == nil {
		return 1 << 16 // Those that the node does not have come last.
	}
	return *r.GPUIndex
}

func addRow(s, r *api.UsageRow) {
	for to, n := range map[*api.Thousandths]api.Thousandths{
		&s.HeldSeconds: r.HeldSeconds, &s.OccupancySeconds: r.OccupancySeconds, &s.OccupancyMeasuredSeconds: r.OccupancyMeasuredSeconds,
		&s.BusySeconds: r.BusySeconds, &s.BusyMeasuredSeconds: r.BusyMeasuredSeconds, &s.GPUMemoryGiBSeconds: r.GPUMemoryGiBSeconds,
		&s.GPUMemoryMeasuredSeconds: r.GPUMemoryMeasuredSeconds, &s.GPUSeconds: r.GPUSeconds, &s.GPUMeasuredSeconds: r.GPUMeasuredSeconds,
		&s.HeldIdleSeconds: r.HeldIdleSeconds, &s.HeldIdleMeasuredSeconds: r.HeldIdleMeasuredSeconds,
		&s.QueueWaitSeconds: r.QueueWaitSeconds,
	} {
		*to += n
	}
	s.LeasesStarted, s.LeasesEnded = s.LeasesStarted+r.LeasesStarted, s.LeasesEnded+r.LeasesEnded
	s.GPUMemoryPeak = max(s.GPUMemoryPeak, r.GPUMemoryPeak)
}

func reportHead(by string) []string {
	return []string{
		map[string]string{api.ByGPU: "GPU"}[by] + strings.TrimSuffix(by, api.ByGPU),
		"GPU-hours",
		"of capacity",
		"held but idle",
		"busy hours",
		"GiB-hours",
		"peak",
		"leases started",
	}
}

func reportRows(u *api.Usage, rows []api.UsageRow, by string) [][]string {
	var out [][]string
	for i := range rows {
		r := &rows[i]
		key := cmp.Or(r.Tenant, r.User, gpuOf(r), "-")
		out = append(out, []string{
			key, gpuHours(r), capacityPart(u, r, by == api.ByGPU), idlePart(r), busyHours(r), gibHours(r), peakOf(r),
			strconv.FormatInt(r.LeasesStarted, 10),
		})
	}
	return out
}

// mdTable prints a table in Markdown; numbers are at the right.
func (a *app) mdTable(head []string, rows [][]string) {
	rule := make([]string, len(head))
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	for _, row := range append([][]string{head, rule}, rows...) {
		cells := make([]string, len(row))
		for i := range row {
			cells[i] = mdText(row[i])
		}
		fmt.Fprintln(a.io.Out, "| "+strings.Join(cells, " | ")+" |")
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.io.Out, "\nnothing")
	}
}

// mdText is text that Markdown prints as it is.
func mdText(s string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`).Replace(printable(s))
}

// The values of a row in the units of people.

// hours are seconds as hours.
func hours(n api.Thousandths) string { return fmt.Sprintf("%.2f", float64(n)/1000/3600) }

func gpuHours(r *api.UsageRow) string {
	if r.GPUMeasuredSeconds == 0 {
		return "-"
	}
	return hours(r.GPUSeconds)
}

func busyHours(r *api.UsageRow) string {
	if r.BusyMeasuredSeconds == 0 {
		return "-"
	}
	return hours(r.BusySeconds)
}

func gibHours(r *api.UsageRow) string {
	if r.GPUMemoryMeasuredSeconds == 0 {
		return "-"
	}
	return hours(r.GPUMemoryGiBSeconds)
}

func peakOf(r *api.UsageRow) string {
	if r.GPUMemoryMeasuredSeconds == 0 {
		return "-"
	}
	return gib(r.GPUMemoryPeak)
}

func idlePart(r *api.UsageRow) string { return partOf(r.HeldIdleSeconds, r.HeldIdleMeasuredSeconds) }

// partOf is a part in percent; "-" of nothing.
func partOf(part, whole api.Thousandths) string {
	if whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

// capacityPart is how much of what there was a row had: of its GPU, or of all.
func capacityPart(u *api.Usage, r *api.UsageRow, ofOne bool) string {
	if u.Capacity == nil || r.GPUMeasuredSeconds == 0 {
		return "-"
	}
	whole := u.Capacity.GPUSeconds
	if ofOne && u.Capacity.GPUs > 0 {
		whole /= api.Thousandths(u.Capacity.GPUs)
	}
	return partOf(r.GPUSeconds, whole)
}

// gpuOf names a GPU by its index, or by its UUID if the node does not have it now.
func gpuOf(r *api.UsageRow) string {
	if r.GPUIndex != nil {
		return gpuColumn(*r.GPUIndex)
	}
	return shortUUID(r.GPU)
}

// outsideHead are the columns of outsideRows.
var outsideHead = []string{"user", "GPU", "hours on GPUs", "held but idle", "busy hours", "GiB-hours", "peak"}

// outsideRows are what users used outside of leases, with GPUs by GPU.
func outsideRows(rows []api.UsageRow, gpus bool) [][]string {
	var out [][]string
	for i := range rows {
		r := &rows[i]
		on := "all"
		if gpus && r.GPU != "" {
			on = gpuOf(r)
		}
		out = append(out, []string{dash(r.User), on, hours(r.HeldSeconds), idlePart(r), busyHours(r), gibHours(r), peakOf(r)})
	}
	return out
}

// usageNotes are what was not measured, in one line, and what was lost.
func usageNotes(u *api.Usage) []string {
	var out []string
	if missing := notMeasured(&u.Total); len(missing) > 0 {
		out = append(out, "not measured, of "+hours(u.Total.HeldSeconds)+" hours held: "+strings.Join(missing, ", "))
	}
	if line := lost(u); line != "" {
		out = append(out, line)
	}
	return out
}
