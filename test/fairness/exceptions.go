package fairness

import (
	"cmp"
	"slices"
	"time"
)

// figure is one of the figures that Limits hold.
type figure string

// The figures.
const (
	rms10    figure = "RMS10"
	rms60    figure = "RMS60"
	bias     figure = "Bias"
	idles    figure = "Busy"
	p99      figure = "Latency"
	gained   figure = "Gain"
	nearly          = 0.7 // of a target: what a figure is below if it meets that by a wide margin
	busier          = 1.5 // points above a target: the same of how busy the GPU is
	fraction        = 4   // of the time by which a request may take longer: the same
)

// Target is what holds without an exception.
func (sc Scenario) Target() Limits {
	if sc.Bound {
		return Target
	}
	return sc.demandTarget()
}

// misses are the figures for which limits allow more than a target.
func (l Limits) misses(target Limits) []figure {
	var out []figure
	for name, worse := range map[figure]bool{
		rms10:  l.RMS10 > target.RMS10,
		rms60:  target.RMS60 != 0 && l.RMS60 > target.RMS60,
		bias:   target.Bias != 0 && l.Bias > target.Bias,
		idles:  l.Busy < target.Busy,
		p99:    l.Latency > target.Latency,
		gained: cmp.Or(l.Gain, GainTarget) > GainTarget,
	} {
		if worse {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// meets reports whether a figure of a cell meets the target by a wide margin: no exception is needed for that.
func (sc Scenario) meets(name figure, f, free Figures, target Limits) bool {
	switch name {
	case rms10:
		return f.RMS10 <= nearly*target.RMS10
	case rms60:
		return f.RMS60 <= nearly*target.RMS60
	case bias:
		return f.Bias <= nearly*target.Bias
	case gained:
		return f.Gain <= nearly*GainTarget
	case idles:
		most := 100.0
		if !sc.Bound {
			most = free.Busy
		}
		return f.Busy >= (target.Busy+busier)*most/100
	case p99:
		return sc.longer(f, free) <= target.Latency/fraction
	}
	return false
}

// longer is by how much one in a hundred requests of a lease below its share takes longer than side by side: the most of all leases.
func (sc Scenario) longer(f, free Figures) time.Duration {
	var out time.Duration
	for i, l := range f.Latency {
		if l.Requests != 0 && !sc.Demanding(i) {
			out = max(out, l.P99-free.Latency[i].P99)
		}
	}
	return out
}

// exceptionOf is the row of the exceptions that a cell has: its scenario and its samplers, or where leases keep the GPU busy the number of
// the row. Empty: it has none.
func (sc Scenario) exceptionOf(v Variant) string {
	if sc.Bound {
		if i := sc.boundException(v); i >= 0 {
			x, all := exceptions[i], "all samplers"
			if x.noSeries {
				all = string(noSeries)
			}
			return cmp.Or(x.scenario, "all loads") + " · " + cmp.Or(x.variant, all)
		}
		return ""
	}
	if len(sc.Limits(v).misses(sc.Target())) == 0 {
		return ""
	}
	if x := sc.lack(v); x != nil {
		return x.scenario + " · " + string(x.samplers)
	}
	return sc.Name
}
