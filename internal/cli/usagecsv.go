package cli

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpushare/gpushare/api"
)

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
	{api.ByAccount, func(r *api.UsageRow) string { return r.Account }},
	{api.ByJob, func(r *api.UsageRow) string { return r.Job }},
}

// usageColumns are the other columns of leases.
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
	{"gpu_seconds", func(r *api.UsageRow) string { return r.GPUSeconds.Fixed() }},
	{"gpu_measured_seconds", func(r *api.UsageRow) string { return r.GPUMeasuredSeconds.Fixed() }},
	{"held_idle_seconds", func(r *api.UsageRow) string { return r.HeldIdleSeconds.Fixed() }},
	{"held_idle_measured_seconds", func(r *api.UsageRow) string { return r.HeldIdleMeasuredSeconds.Fixed() }},
	{"gpu_index", func(r *api.UsageRow) string {
		if r.GPUIndex == nil {
			return ""
		}
		return strconv.Itoa(*r.GPUIndex)
	}},
}

// outsideColumns are the columns of what was used outside of leases. They come last.
var outsideColumns = []usageColumn{
	{"outside_held_seconds", func(r *api.UsageRow) string { return r.HeldSeconds.Fixed() }},
	{"outside_busy_seconds", func(r *api.UsageRow) string { return r.BusySeconds.Fixed() }},
	{"outside_busy_std_error_seconds", func(r *api.UsageRow) string { return r.BusyStdErrorSeconds.Fixed() }},
	{"outside_busy_measured_seconds", func(r *api.UsageRow) string { return r.BusyMeasuredSeconds.Fixed() }},
	{"outside_gpu_memory_gib_seconds", func(r *api.UsageRow) string { return r.GPUMemoryGiBSeconds.Fixed() }},
	{"outside_gpu_memory_measured_seconds", func(r *api.UsageRow) string { return r.GPUMemoryMeasuredSeconds.Fixed() }},
	{"outside_gpu_memory_peak_bytes", func(r *api.UsageRow) string { return strconv.FormatUint(r.GPUMemoryPeak, 10) }},
	{"outside_held_idle_seconds", func(r *api.UsageRow) string { return r.HeldIdleSeconds.Fixed() }},
	{"outside_held_idle_measured_seconds", func(r *api.UsageRow) string { return r.HeldIdleMeasuredSeconds.Fixed() }},
}

// csvRow is what leases used, and what was used outside of them, of one key.
type csvRow struct{ leases, outside api.UsageRow }

// csvRows are the rows of the leases in their order, then those of keys that only have use outside of leases. A key has one row, so that
// readers may use it as the key of theirs.
func csvRows(u *api.Usage) []csvRow {
	type key struct{ tenant, user, gpu, lease, account, job string }
	keyOf := func(r *api.UsageRow) key { return key{r.Tenant, r.User, r.GPU, r.Lease, r.Account, r.Job} }
	rows, at := make([]csvRow, 0, len(u.Rows)), map[key]int{}
	for i := range u.Rows {
		r := &u.Rows[i]
		at[keyOf(r)] = len(rows)
		rows = append(rows, csvRow{leases: *r})
	}
	if u.Outside == nil {
		return rows
	}
	for i := range u.Outside.Rows {
		r := &u.Outside.Rows[i]
		j, ok := at[keyOf(r)]
		if !ok {
			j = len(rows)
			rows = append(rows, csvRow{leases: api.UsageRow{User: r.User, GPU: r.GPU, GPUIndex: r.GPUIndex}})
		}
		rows[j].outside = *r
	}
	return rows
}

func (a *app) usageCSV(u *api.Usage) error {
	columns := slices.DeleteFunc(slices.Clone(keyColumns), func(c usageColumn) bool { return !slices.Contains(u.By, c.name) })
	columns = append(columns, usageColumns...)
	w := csv.NewWriter(a.io.Out)
	w.UseCRLF = true
	var head []string
	for _, c := range slices.Concat(columns, outsideColumns) {
		head = append(head, c.name)
	}
	err := w.Write(head)
	rows := csvRows(u)
	for r := range rows {
		line := make([]string, 0, len(head))
		for _, c := range columns {
			line = append(line, c.value(&rows[r].leases))
		}
		for _, c := range outsideColumns {
			line = append(line, c.value(&rows[r].outside))
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
