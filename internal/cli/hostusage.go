package cli

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// usageOfHosts has the rows of the accounts of hosts, and one total.
func (a *app) usageOfHosts(cmd *cobra.Command, hosts []hostAnswer) (*hostTable, error) {
	if cmd.Flags().Changed("step") && !a.json {
		return nil, usageError{err: errors.New("--step needs --json with --host")}
	}
	by, err := usageKeysOf(cmd)
	if err != nil {
		return nil, err
	}
	t := newHostTable(usageTable(by)...)
	whole, capacity, read := api.Usage{}, api.UsageCapacity{}, 0
	for i := range hosts {
		u, ok := decode[api.Usage](&hosts[i])
		if !ok {
			continue
		}
		if !slices.Equal(inOrder(u.By), by) {
			hosts[i].fail(api.KindUnavailable, "its answer is by "+strings.Join(u.By, ",")+" and not by "+strings.Join(by, ","), "")
			continue
		}
		u.By = by
		if read++; read == 1 || u.Since.Before(whole.Since) {
			whole.Since = u.Since
		}
		if u.Until.After(whole.Until) {
			whole.Until = u.Until
		}
		if u.Capacity != nil {
			capacity.GPUs, capacity.GPUSeconds = capacity.GPUs+u.Capacity.GPUs, capacity.GPUSeconds+u.Capacity.GPUSeconds
			whole.Capacity = &capacity
		}
		for j := range u.Rows {
			if len(by) == 0 {
				break // The total has it.
			}
			t.add(hosts[i].Host, j, append(usageKeys(u, &u.Rows[j]), usageCells(u, &u.Rows[j])...), "")
		}
		addTotal(&whole.Total, &u.Total)
		t.note(hosts[i].Host, usageNotes(u))
	}
	if read == 0 {
		return t, nil
	}
	head := text.Between(whole.Since.In(zone()), whole.Until.In(zone()))
	if whole.Capacity != nil {
		head += fmt.Sprintf(", capacity %s GPU-hours of %s", hours(capacity.GPUSeconds), text.Count(capacity.GPUs, "GPU"))
	}
	t.head = []string{head + " on " + text.Count(read, "host"), ""}
	t.add("total", 0, append(make([]string, max(1, len(by))), usageCells(&whole, &whole.Total)...), "")
	return t, nil
}

// usageKeysOf are the keys of the rows that were requested, in the order of the columns.
func usageKeysOf(cmd *cobra.Command) ([]string, error) {
	if cmd.Flags().Changed("month") && !cmd.Flags().Changed("by") {
		return []string{api.ByTenant, api.ByUser, api.ByGPU}, nil
	}
	requested, err := cmd.Flags().GetStringSlice("by")
	if err != nil {
		return nil, err
	}
	by := inOrder(requested)
	for _, key := range requested {
		if !slices.Contains(by, key) {
			return nil, usageError{err: fmt.Errorf("--by %q is unknown", key), hint: "it is one of tenant, user, gpu, lease, account, job"}
		}
	}
	return by, nil
}

// inOrder are the keys that this version knows, in the order of the columns.
func inOrder(keys []string) []string {
	out := []string{}
	for _, c := range keyColumns {
		if slices.Contains(keys, c.name) {
			out = append(out, c.name)
		}
	}
	return out
}

// addTotal adds the total of a host.
func addTotal(s, r *api.UsageRow) {
	addRow(s, r)
	s.BusyStdErrorSeconds = api.Thousandths(math.Hypot(float64(s.BusyStdErrorSeconds), float64(r.BusyStdErrorSeconds)))
	s.QueueWaitLongestSeconds = max(s.QueueWaitLongestSeconds, r.QueueWaitLongestSeconds)
	for code, n := range r.ExitCodes {
		if s.ExitCodes == nil {
			s.ExitCodes = map[string]int64{}
		}
		s.ExitCodes[code] += n
	}
}
