package account

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/usage"
)

const (
	// queryTimeout bounds a query, with the wait for another.
	queryTimeout = 20 * time.Second
	// mostRows is how many rows, or ended leases, an answer has at most.
	mostRows = 100_000
)

// errTooMany: an answer would have too many rows.
var errTooMany = &api.Error{
	Kind:    api.KindInvalid,
	Message: fmt.Sprintf("cannot show more than %d rows", mostRows),
	Hint:    "write a shorter time with --since and --until, or fewer keys with --by",
}

// GetUsage answers what leases used. A member reads only their own tenants.
func (a *Account) GetUsage(c *server.Call) error {
	now := a.Now()
	since, until, err := period(c.Text("since"), c.Text("until"), now)
	if err != nil {
		return err
	}
	by, keys, err := parseBy(c.Text("by"))
	if err != nil {
		return err
	}
	if end := until.Truncate(time.Hour).Add(time.Hour); !until.Equal(until.Truncate(time.Hour)) && end.Before(now) {
		until = end
	}
	since = since.Truncate(time.Hour) // The records are those of hours.
	step, err := parseStep(c.Text("step"), since, until)
	if err != nil {
		return err
	}
	sums, series := usage.NewSums(by, since, until), (*usage.Series)(nil)
	if step > 0 {
		series = usage.NewSeries(by, since, until, step)
	}
	outside := usage.NewOutsideSums(by, since, until)
	from, err := a.each(c.Ctx(), since, until, func(r *usage.Record) error {
		if !seesUse(c.Caller, r) {
			return nil
		}
		sums.Add(r)
		outside.Add(r)
		if series != nil {
			if err := series.Add(r); err != nil {
				return onlyDays(r, step)
			}
			if series.Len() > mostRows {
				return errTooMany
			}
		}
		if sums.Len()+outside.Len() > mostRows {
			return errTooMany
		}
		return nil
	})
	if err != nil {
		return err
	}
	out := &api.Usage{SchemaVersion: 1, Since: from.UTC(), Until: until.UTC(), By: keys, Rows: []api.UsageRow{}, LostRecords: sums.Lost()}
	rows, total := sums.Rows()
	for i := range rows {
		out.Rows = append(out.Rows, rowOf(&rows[i]))
	}
	out.Total = rowOf(&usage.Row{Amounts: total})
	out.Outside = outsideOf(outside)
	out.Host = a.Host
	if err := a.addGPUs(c.Ctx(), out, now); err != nil {
		return err
	}
	if series != nil {
		out.StepSeconds, out.Steps = int64(step.Seconds()), stepsOf(series)
	}
	return c.Reply(http.StatusOK, out)
}

// seesUse reports whether a caller may read a record: of their tenants, and of their own use outside of leases.
func seesUse(c *server.Caller, r *usage.Record) bool {
	switch r.Kind {
	case usage.KindLost:
		return true
	case usage.KindOutside, usage.KindOutsideSum:
		return c.ReadsAll() || r.User == c.Name || r.User == names.UIDLabel(c.UID) // Its name was not known then.
	}
	return c.Sees(r.Tenant)
}

// outsideOf is what was used outside of leases; nil: nothing was.
func outsideOf(s *usage.Sums) *api.UsageOutside {
	rows, total := s.Rows()
	if len(rows) == 0 {
		return nil
	}
	out := &api.UsageOutside{Total: rowOf(&usage.Row{Amounts: total})}
	for i := range rows {
		out.Rows = append(out.Rows, rowOf(&rows[i]))
	}
	return out
}

// parseStep reads the length of a step: whole hours, and no more of them than an answer has steps. Zero: no steps are requested.
func parseStep(s string, since, until time.Time) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := api.ParseDuration(s)
	step := time.Duration(d)
	switch {
	case err != nil:
		return 0, &api.Error{Kind: api.KindInvalid, Message: "cannot read step: " + err.Error()}
	case step < time.Hour || step%time.Hour != 0:
		return 0, &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot show steps of %s: the account has whole hours", d),
			Hint:    "write a step of one or more hours, as in 1h or 1d",
		}
	case until.Sub(since.Truncate(step)) > api.MostUsageSteps*step:
		return 0, &api.Error{
			Kind: api.KindInvalid,
			Message: fmt.Sprintf(
				"cannot show more than %d steps: %s has more of %s", api.MostUsageSteps,
				api.Duration(until.Sub(since).Truncate(time.Hour)), d,
			),
			Hint: "write a longer step, or a shorter time with --since and --until",
		}
	}
	return step, nil
}

// onlyDays refuses steps of hours of a day of which only a sum is left.
func onlyDays(r *usage.Record, step time.Duration) error {
	return &api.Error{
		Kind:    api.KindInvalid,
		Message: fmt.Sprintf("cannot show steps of %s: of %s only the sum of the day is kept", api.Duration(step), r.Day()),
		Hint:    "write a step of whole days, as in 1d, or a later --since",
	}
}

func stepsOf(s *usage.Series) []api.UsageStep {
	steps := s.Steps()
	out := make([]api.UsageStep, len(steps))
	for i := range steps {
		out[i] = api.UsageStep{Since: steps[i].Since.UTC(), Rows: make([]api.UsageStepRow, len(steps[i].Rows))}
		for k := range steps[i].Rows {
			r := &steps[i].Rows[k]
			out[i].Rows[k] = api.UsageStepRow{UsageRow: rowOf(&r.Row), WaitingSeconds: api.Thousandths(r.Waiting)}
		}
	}
	return out
}

func rowOf(r *usage.Row) api.UsageRow {
	if r.Exits == nil {
		r.Exits = map[string]int64{}
	}
	return api.UsageRow{
		Tenant:                   r.Tenant,
		Account:                  r.Account,
		Job:                      r.Job,
		User:                     r.User,
		GPU:                      string(r.GPU),
		Lease:                    r.Lease,
		LeasesStarted:            r.Starts,
		LeasesEnded:              r.Ends,
		HeldSeconds:              api.Thousandths(r.Held),
		OccupancySeconds:         api.Thousandths(r.Occupancy),
		OccupancyMeasuredSeconds: api.Thousandths(r.OccupancyKnown),
		BusySeconds:              api.Thousandths(r.Busy),
		BusyStdErrorSeconds:      api.Thousandths(math.Round(math.Sqrt(float64(max(0, r.BusyVariance))))),
		BusyMeasuredSeconds:      api.Thousandths(r.BusyKnown),
		GPUMemoryGiBSeconds:      api.Thousandths(r.Memory),
		GPUMemoryMeasuredSeconds: api.Thousandths(r.MemoryKnown),
		GPUMemoryPeak:            uint64(max(0, r.Peak)),
		QueueWaitSeconds:         api.Thousandths(r.Wait),
		QueueWaitLongestSeconds:  api.Thousandths(r.LongestWait),
		ExitCodes:                r.Exits,
		GPUSeconds:               api.Thousandths(r.GPUTime),
		GPUMeasuredSeconds:       api.Thousandths(r.GPUTimeKnown),
		HeldIdleSeconds:          api.Thousandths(r.Idle),
		HeldIdleMeasuredSeconds:  api.Thousandths(r.IdleKnown),
	}
}

// each calls f with every record of a time, those included that are not on the disk yet.
func (a *Account) each(ctx context.Context, since, until time.Time, f func(*usage.Record) error) (from time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := a.acquireFiles(ctx); err != nil {
		return since, &api.Error{Kind: api.KindUnavailable, Message: err.Error(), Hint: "try again"}
	}
	defer a.releaseFiles()
	if err := a.open(); err != nil {
		return since, &api.Error{Kind: api.KindUnavailable, Message: err.Error(), Hint: "see 'gpushare doctor'"}
	}
	now := a.now()
	a.mu.Lock()
	newer := slices.Concat(a.pending.Records(), a.meter.Peek(now, usage.AllLeases), a.outside.Peek())
	if a.lost > 0 {
		newer = append(newer, usage.Record{Kind: usage.KindLost, At: now.Date.UnixMilli(), Run: a.run, Lost: a.lost})
	}
	a.mu.Unlock()
	from, err = a.store.Each(since, until, newer, func(r *usage.Record) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return f(r)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return from, &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot read the account within %s", queryTimeout),
			Hint:    "write a shorter time with --since and --until",
		}
	}
	return from, err
}

// parseBy reads the keys of rows.
func parseBy(s string) (by usage.By, keys []string, err error) {
	all := []string{api.ByTenant, api.ByUser, api.ByGPU, api.ByLease, api.ByAccount, api.ByJob}
	requested := map[string]bool{}
	for _, key := range strings.Split(s, ",") {
		switch {
		case s == "":
		case !slices.Contains(all, key):
			return by, nil, &api.Error{
				Kind:    api.KindInvalid,
				Message: fmt.Sprintf("cannot show usage by %q: the keys are %s", key, strings.Join(all, ", ")),
			}
		case requested[key]:
			return by, nil, &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot show usage by %q twice", key)}
		}
		requested[key] = s != ""
	}
	keys = slices.DeleteFunc(all, func(key string) bool { return !requested[key] })
	return usage.By{
		Tenant:  requested[api.ByTenant],
		User:    requested[api.ByUser],
		Account: requested[api.ByAccount],
		Job:     requested[api.ByJob],
		GPU:     requested[api.ByGPU],
		Lease:   requested[api.ByLease],
	}, keys, nil
}

// EndedLeases returns the leases that ended since a time, the last first. Since is an age or a date, as in GetUsage.
func (a *Account) EndedLeases(ctx context.Context, since string, sees func(tenant string, uid int) bool) ([]api.Lease, error) {
	begin, until, err := period(since, "", a.Now())
	if err != nil {
		return nil, err
	}
	var out []api.Lease
	// A lease ends on the day of its last use. What is of a later time than now was written before the clock was set back.
	if _, err := a.each(ctx, begin, until.Add(24*time.Hour), func(r *usage.Record) error {
		if r.Kind == usage.KindEnd && sees(r.Tenant, userOf(r)) && !r.Time().Before(begin) {
			out = append(out, endedLease(r))
		}
		if len(out) > mostRows {
			return errTooMany
		}
		return nil
	}); err != nil {
		return nil, err
	}
	slices.SortStableFunc(out, func(a, b api.Lease) int { return b.Ended.Compare(*a.Ended) })
	return out, nil
}

// userOf returns the uid of a lease's user, -1 if the record does not have it.
func userOf(r *usage.Record) int {
	if r.Facts == nil {
		return -1
	}
	return r.Facts.UID
}

func endedLease(r *usage.Record) api.Lease {
	f := r.Facts
	if f == nil {
		f = &usage.Facts{}
	}
	started, ended, elapsed := time.UnixMilli(r.Started), r.Time(), api.Thousandths(r.Elapsed)
	l := api.Lease{
		ID:             r.Lease,
		Generation:     r.Generation,
		Tenant:         r.Tenant,
		Grant:          r.Grant,
		Kind:           f.Kind,
		State:          api.LeaseEnded,
		Origin:         f.Origin,
		User:           r.User,
		UID:            f.UID,
		Command:        f.Command,
		GPUs:           f.GPUs,
		Devices:        f.Devices,
		Created:        time.UnixMilli(r.Created),
		Started:        &started,
		Ended:          &ended,
		ElapsedSeconds: &elapsed,
		Reason:         f.Reason,
		Result:         f.Result,
		ExitCode:       f.ExitCode,
	}
	if r.Job != "" {
		l.Engine = &api.LeaseEngine{Key: r.Job, Account: r.Account, Bound: true}
	}
	if peak := uint64(max(0, r.Highest)); peak > 0 {
		l.GPUMemory = &api.LeaseMemory{Peak: &peak}
	}
	return l
}
