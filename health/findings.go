package health

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// Finding is something that an administrator should know of a GPU. It closes nothing.
type Finding struct {
	Rule string // one word for each rule
	Text string
	Hint string // empty with Reset
	// Reset: a reset of the GPU ends it.
	Reset bool
}

// ClearsBelow is how far the temperature falls below the limit before a GPU is not hot any more, in °C.
const ClearsBelow = 5

// Readings are the findings of one reading. was are those of the reading before: a finding does not come and go with each degree.
func Readings(h *gpu.Health, p Policy, was []Finding) (out []Finding) {
	if r := h.Rows; r != nil && r.Pending {
		out = append(out, Finding{Rule: "rows-pending", Text: "rows of its memory failed, and the next reset replaces them", Reset: true})
	}
	if r := h.Rows; r != nil && r.Failed {
		out = append(out, Finding{Rule: "rows-failed", Text: Of(RowsFailed).Meaning, Hint: "plan to exchange the board"})
	}
	if f, ok := hot(h, p, was); ok {
		out = append(out, f)
	}
	if f, ok := unpaused(h, p); ok {
		out = append(out, f)
	}
	return out
}

// hot reports a temperature at which something follows.
func hot(h *gpu.Health, p Policy, was []Finding) (Finding, bool) {
	const rule = "temperature"
	warn := limitOf(h, p)
	if h.Temperature == nil || warn == nil {
		return Finding{}, false
	}
	from := "its clocks are lowered from %d °C"
	if p.Warn != nil {
		from = "the spec warns from %d °C"
	}
	least := *warn
	if has(was, rule) {
		least -= ClearsBelow - 1
	}
	return Finding{
		Rule: rule,
		Text: fmt.Sprintf("its temperature is %d °C, and "+from, *h.Temperature, *warn),
		Hint: "check its fans and the air around it",
	}, *h.Temperature >= least
}

// unpaused reports that the spec pauses leases on a hot GPU, and that it cannot be known when it is hot.
func unpaused(h *gpu.Health, p Policy) (Finding, bool) {
	f := Finding{
		Rule: "pause-low",
		Text: "no lease on it is paused when it is hot (temperature.do: pause-low): its driver reports no temperature",
		Hint: "write do: tell for it",
	}
	if h.Temperature != nil {
		f.Text, f.Hint = f.Text+" from which its clocks are lowered", "write the temperature as health.temperature.warn"
	}
	return f, p.PauseLow && (h.Temperature == nil || limitOf(h, p) == nil)
}

// limitOf is the temperature from which a GPU is hot, in °C; nil if neither the spec nor the driver says it.
func limitOf(h *gpu.Health, p Policy) *int {
	if p.Warn != nil {
		return p.Warn
	}
	return h.SlowdownTemperature
}

// has reports whether a rule fired.
func has(list []Finding, rule string) bool {
	for i := range list {
		if list[i].Rule == rule {
			return true
		}
	}
	return false
}
