package usage

import (
	"errors"
	"time"
)

// ErrOnlyDays: the hours of an old day are not kept, so that no step may be shorter than a day, or have a part of one.
var ErrOnlyDays = errors.New("only the sum of the day is kept")

// SeriesRow is what one group used in one step.
type SeriesRow struct {
	Row
	Waiting int64 // milliseconds in which requests waited in this step, together: of leases that started, now or later
}

// Step is the rows of one step, in the order of their keys.
type Step struct {
	Since time.Time
	Rows  []SeriesRow
}

// Series adds up the records of a time by steps of equal length.
type Series struct {
	since   time.Time // of the first step
	step    time.Duration
	from    time.Time // what was before is not counted
	until   time.Time // nor what is from here on
	steps   []*Sums
	waiting []map[Group]int64
	rows    int
}

// NewSeries returns an empty series of [since, until). Steps are whole hours, and begin at multiples of their length in UTC: since
// and until cut the first and the last.
func NewSeries(by By, since, until time.Time, step time.Duration) *Series {
	s := &Series{since: since.Truncate(step), step: step, from: since, until: until}
	for at := s.since; at.Before(until); at = at.Add(step) {
		s.steps = append(s.steps, NewSums(by, later(at, since), earlier(at.Add(step), until)))
		s.waiting = append(s.waiting, map[Group]int64{})
	}
	return s
}

// Add adds a record. It must be given once: see Distinct.
func (s *Series) Add(r *Record) error {
	at := r.Time()
	if r.Kind == KindSum && s.step%(24*time.Hour) != 0 {
		return ErrOnlyDays
	}
	i := int(at.Sub(s.since) / s.step)
	if at.Before(s.since) || i >= len(s.steps) {
		i = -1 // It started after the last step: it may have waited before.
	}
	if i >= 0 {
		before := s.steps[i].Len()
		s.steps[i].Add(r)
		s.rows += s.steps[i].Len() - before
	}
	switch {
	case len(s.steps) == 0:
	case r.Kind == KindStart:
		s.spread(s.steps[0].by.group(r), at.Add(-time.Duration(r.Wait)*time.Millisecond), at)
	case (r.Kind == KindSum || r.Kind == KindFold) && i >= 0:
		// When they waited is not kept: it counts on the day or in the hour of the start.
		s.waiting[i][s.steps[0].by.group(r)] += r.Wait
	}
	return nil
}

// spread divides a wait into the steps in which it was.
func (s *Series) spread(g Group, from, to time.Time) {
	for i := max(0, int(from.Sub(s.since)/s.step)); i < len(s.steps); i++ {
		begin := s.since.Add(time.Duration(i) * s.step)
		if !begin.Before(to) {
			return
		}
		end := earlier(earlier(begin.Add(s.step), s.until), to)
		begin = later(later(begin, s.from), from)
		if d := end.Sub(begin).Milliseconds(); d > 0 {
			if s.steps[i].rows[g] == nil {
				s.steps[i].rows[g] = &Amounts{}
				s.rows++
			}
			s.waiting[i][g] += d
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Len returns the number of rows of all steps.
func (s *Series) Len() int { return s.rows }

// Steps returns all steps, also those without rows.
func (s *Series) Steps() []Step {
	out := make([]Step, len(s.steps))
	for i, sums := range s.steps {
		rows, _ := sums.Rows()
		out[i] = Step{Since: s.since.Add(time.Duration(i) * s.step), Rows: make([]SeriesRow, len(rows))}
		for k := range rows {
			out[i].Rows[k] = SeriesRow{rows[k], s.waiting[i][rows[k].Group]}
		}
	}
	return out
}
