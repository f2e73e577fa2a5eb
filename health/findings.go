package health

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// Finding is something that an administrator should know of a GPU. It closes nothing.
type Finding struct {
	Rule string // one word for each rule
	Text string
	Hint string
}

// clearsBelow is how far the temperature falls below the warning before the finding ends, in °C.
const clearsBelow = 5

// Readings are the findings of one reading. was are those of the reading before: a finding does not come and go with each degree.
func Readings(h *gpu.Health, p Policy, was []Finding) (out []Finding) {
	if r := h.Rows; r != nil && r.Pending {
		out = append(out, Finding{"rows-pending", "rows of its memory failed, and the next reset replaces them", "reset the GPU when it is idle: 'gpushare gpu drain', then 'nvidia-smi -r'"})
	}
	if r := h.Rows; r != nil && r.Failed {
		out = append(out, Finding{"rows-failed", Of(RowsFailed).Meaning, "plan to exchange the board"})
	}
	if f, ok := hot(h, p, was); ok {
		out = append(out, f)
	}
	return out
}

// hot reports a temperature at which something follows.
func hot(h *gpu.Health, p Policy, was []Finding) (Finding, bool) {
	const rule = "temperature"
	warn, from := p.Warn, "the spec warns from %d °C"
	if warn == nil {
		warn, from = h.SlowdownTemperature, "its clocks are lowered from %d °C"
	}
	if h.Temperature == nil || warn == nil {
		return Finding{}, false
	}
	least := *warn
	if has(was, rule) {
		least -= clearsBelow - 1
	}
	return Finding{rule, fmt.Sprintf("its temperature is %d °C, and "+from, *h.Temperature, *warn), "check its fans and the air around it"}, *h.Temperature >= least
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
