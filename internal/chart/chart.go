// Package chart turns usage over time into the values that a plot shows. It draws nothing.
package chart

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// Chart is several values over the same time.
type Chart struct {
	Title       string    `json:"title"`
	Since       time.Time `json:"since"` // begin of the first step
	StepSeconds int64     `json:"step_seconds"`
	StepCount   int       `json:"step_count"`
	Panels      []Panel   `json:"panels"`
	Notes       []string  `json:"notes,omitempty"` // what the values lack
}

// Panel is one value.
type Panel struct {
	Title  string   `json:"title"`
	Unit   string   `json:"unit"`
	Series []Series `json:"series"`           // the one with the highest mean first
	Absent string   `json:"absent,omitempty"` // why there are no series
	// Least is up to where its axis reaches at least: less than one GPU, GiB or request fills no panel.
	Least float64 `json:"least,omitempty"`
}

// Series is the values of one tenant, one for each step.
type Series struct {
	Name   string    `json:"name"`
	Values []float64 `json:"values"`
}

// Mean returns the mean of the values.
func (s *Series) Mean() float64 {
	sum := 0.0
	for _, v := range s.Values {
		sum += v
	}
	return sum / float64(max(1, len(s.Values)))
}

// Max returns the highest value.
func (s *Series) Max() float64 { return slices.Max(append([]float64{0}, s.Values...)) }

// Others is the name of the series that has what the named ones have not.
const Others = "others"

// mostSeries is how many tenants have a series of their own.
const mostSeries = 8

// value is how a panel reads a row.
type value struct {
	title, unit, absent string
	amount              func(*api.UsageStepRow) api.Thousandths
	measured            func(*api.UsageStepRow) api.Thousandths
}

var values = []value{
	{
		"GPU time charged",
		"GPUs",
		"not measured: MPS charges no time",
		func(r *api.UsageStepRow) api.Thousandths { return r.OccupancySeconds },
		func(r *api.UsageStepRow) api.Thousandths { return r.OccupancyMeasuredSeconds },
	},
	{
		"GPU time busy",
		"GPUs",
		"not measured: the driver does not report it of MIG instances",
		func(r *api.UsageStepRow) api.Thousandths { return r.BusySeconds },
		func(r *api.UsageStepRow) api.Thousandths { return r.BusyMeasuredSeconds },
	},
	{
		"GPU memory",
		"GiB",
		"not measured",
		func(r *api.UsageStepRow) api.Thousandths { return r.GPUMemoryGiBSeconds },
		func(r *api.UsageStepRow) api.Thousandths { return r.GPUMemoryMeasuredSeconds },
	},
	{
		"waiting requests",
		requests,
		"no request waited",
		func(r *api.UsageStepRow) api.Thousandths { return r.WaitingSeconds },
		func(r *api.UsageStepRow) api.Thousandths { return r.WaitingSeconds },
	},
}

// Empty reports whether no lease used anything and no request waited.
func Empty(u *api.Usage) bool {
	for i := range u.Steps {
		for k := range u.Steps[i].Rows {
			if r := &u.Steps[i].Rows[k]; r.HeldSeconds > 0 || r.WaitingSeconds > 0 {
				return false
			}
		}
	}
	return true
}

// Of makes the chart of usage by tenant, with steps.
func Of(u *api.Usage, zone *time.Location) Chart {
	c := Chart{
		StepSeconds: u.StepSeconds,
		StepCount:   len(u.Steps),
		Title:       "GPU usage, " + text.Between(u.Since.In(zone), u.Until.In(zone)),
	}
	if len(u.Steps) > 0 {
		c.Since = u.Steps[0].Since
	}
	for i := range values {
		c.Panels = append(c.Panels, values[i].panel(u))
	}
	return c
}

func (v *value) panel(u *api.Usage) Panel {
	p := Panel{Title: v.title, Unit: v.unit, Least: 1}
	all, measured := map[string]*Series{}, false
	for i := range u.Steps {
		for k := range u.Steps[i].Rows {
			r := &u.Steps[i].Rows[k]
			s := all[r.Tenant]
			if s == nil {
				s = &Series{Name: r.Tenant, Values: make([]float64, len(u.Steps))}
				all[r.Tenant] = s
			}
			s.Values[i] += float64(v.amount(r)) / 1000 / length(u, i)
			measured = measured || v.measured(r) > 0
		}
	}
	if !measured {
		p.Absent = v.absent
		return p
	}
	for _, s := range all {
		p.Series = append(p.Series, *s)
	}
	slices.SortFunc(p.Series, func(a, b Series) int { return cmp.Or(cmp.Compare(b.Mean(), a.Mean()), cmp.Compare(a.Name, b.Name)) })
	if p.Series[0].Max() > 0 { // Else one of them shows that all are 0.
		p.Series = slices.DeleteFunc(p.Series, func(s Series) bool { return s.Max() == 0 })
	} else {
		p.Series = p.Series[:1]
	}
	p.join()
	if v.unit == requests && p.Max() < leastRequests {
		p.Series, p.Absent = nil, fmt.Sprintf("less than %g requests waited at a time", leastRequests)
	}
	return p
}

// Max returns the highest value of its series.
func (p *Panel) Max() float64 {
	top := 0.0
	for i := range p.Series {
		top = max(top, p.Series[i].Max())
	}
	return top
}

// requests is the unit of waiting requests. Below leastRequests they waited for seconds: that is no queue.
const (
	requests      = "requests"
	leastRequests = 0.01
)

// length is how many seconds of a step are counted.
func length(u *api.Usage, i int) float64 {
	begin := u.Steps[i].Since
	end := begin.Add(time.Duration(u.StepSeconds) * time.Second)
	if u.Since.After(begin) {
		begin = u.Since
	}
	if u.Until.Before(end) {
		end = u.Until
	}
	return max(1, end.Sub(begin).Seconds())
}

// join adds up the series after the first few.
func (p *Panel) join() {
	if len(p.Series) <= mostSeries {
		return
	}
	rest := Series{Name: Others, Values: make([]float64, len(p.Series[0].Values))}
	for _, s := range p.Series[mostSeries-1:] {
		for i, v := range s.Values {
			rest.Values[i] += v
		}
	}
	p.Series = append(p.Series[:mostSeries-1], rest)
}

// Steps returns how many steps it has, also if nothing was measured.
func (c *Chart) Steps() int {
	n := c.StepCount
	for i := range c.Panels {
		for k := range c.Panels[i].Series {
			n = max(n, len(c.Panels[i].Series[k].Values))
		}
	}
	return n
}

// At returns the begin of a step.
func (c *Chart) At(step int) time.Time {
	return c.Since.Add(time.Duration(step) * time.Duration(c.StepSeconds) * time.Second)
}
