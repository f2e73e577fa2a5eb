package health

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Hour adds up the readings of one hour of one GPU. Counters are what was added in that hour.
type Hour struct {
	Start       time.Time `json:"start"`
	Readings    int       `json:"readings"`
	Slowed      int       `json:"slowed,omitempty"` // readings in which heat or the hardware lowered the clocks
	Corrected   uint64    `json:"corrected,omitempty"`
	Uncorrected uint64    `json:"uncorrected,omitempty"`
	PCIeReplays uint64    `json:"pcie_replays,omitempty"`
	NVLinkCRC   uint64    `json:"nvlink_crc,omitempty"`
	Hottest     int       `json:"hottest,omitempty"` // °C; 0 when it was not read
}

// keptHours is a week, and the hour under way.
const keptHours = 7*24 + 1

// History is what is kept of the readings of one GPU, the newest hour last. The zero value works.
type History struct {
	Hours []Hour `json:"hours"`

	last *gpu.Health // the counters start from it
}

// Add adds a reading. It reports whether a new hour began. The first reading after a start only says where the counters are: what was
// added while nothing was read belongs to no hour.
func (y *History) Add(h *gpu.Health, at time.Time) (began bool) {
	start := at.UTC().Truncate(time.Hour)
	if n := len(y.Hours); n == 0 || !y.Hours[n-1].Start.Equal(start) {
		y.Hours = append(y.Hours, Hour{Start: start})
		y.Hours = y.Hours[max(0, len(y.Hours)-keptHours):]
		began = true
	}
	now := &y.Hours[len(y.Hours)-1]
	now.Readings++
	for _, reason := range h.Throttle {
		if reason == gpu.ThrottleThermal || reason == gpu.ThrottleHardware || reason == gpu.ThrottleHardwareThermal ||
			reason == gpu.ThrottlePowerBrake {
			now.Slowed++
			break
		}
	}
	if h.Temperature != nil {
		now.Hottest = max(now.Hottest, *h.Temperature)
	}
	if was := y.last; was != nil {
		if was.ECC != nil && h.ECC != nil {
			now.Corrected += grown(was.ECC.Corrected, h.ECC.Corrected)
			now.Uncorrected += grown(was.ECC.Uncorrected, h.ECC.Uncorrected)
		}
		if was.PCIeReplays != nil && h.PCIeReplays != nil {
			now.PCIeReplays += grown(*was.PCIeReplays, *h.PCIeReplays)
		}
		if was.NVLinkErrors != nil && h.NVLinkErrors != nil {
			now.NVLinkCRC += grown(was.NVLinkErrors.CRC, h.NVLinkErrors.CRC)
		}
	}
	y.last = h
	return began
}

// grown is what was added to a counter, which begins at 0 when the driver is loaded.
func grown(was, now uint64) uint64 {
	if now < was {
		return now
	}
	return now - was
}

// The rules of trends. Each compares the last day with the days before it, of the same GPU.
const (
	leastBefore = 24 // hours before the last day, without which nothing is compared
	rises       = 10 // how many times as many errors in an hour are a trend
	fewErrors   = 100
	leastSlowed = 0.05 // of the readings of a day
	hotterBy    = 10   // °C
)

// Trends are the findings of the last day against the days before it. Each names its figures.
func (y *History) Trends(h *gpu.Health, now time.Time) (out []Finding) {
	day, before := y.split(now)
	rate := func(rule, what, hint string, count func(*Hour) uint64) {
		n, was := sum(day, count), sum(before, count)
		perHour, wasPerHour := float64(n)/float64(max(1, len(day))), float64(was)/float64(max(1, len(before)))
		if len(before) >= leastBefore && n >= fewErrors && perHour >= rises*wasPerHour {
			out = append(out, Finding{
				Rule: rule,
				Text: fmt.Sprintf(
					"%s in the last day: %d, %.1f an hour; before that %.1f an hour in %d hours", what, n, perHour, wasPerHour,
					len(before),
				),
				Hint: hint,
			})
		}
	}
	if n := sum(day, func(r *Hour) uint64 { return r.Uncorrected }); n > 0 {
		out = append(out, Finding{
			Rule: "uncorrected-errors",
			Text: fmt.Sprintf("errors of its memory that were not corrected in the last day: %d", n),
			Hint: "'nvidia-smi -q -d ECC,ROW_REMAPPER' shows more; plan to exchange the board if they go on after a reset",
		})
	}
	rate(
		"corrected-errors", "errors of its memory that were corrected", "plan to check the board",
		func(r *Hour) uint64 { return r.Corrected },
	)
	rate(
		"pcie-replays", "repeated transfers over PCIe", "check that the board sits well in its slot",
		func(r *Hour) uint64 { return r.PCIeReplays },
	)
	rate(
		"nvlink-errors", "CRC errors of its NVLinks", "check its links with 'nvidia-smi nvlink -e'",
		func(r *Hour) uint64 { return r.NVLinkCRC },
	)
	if slowed, was := part(day), part(before); slowed >= leastSlowed && len(before) >= leastBefore && slowed >= 3*was {
		out = append(out, Finding{
			Rule: "slowed",
			Text: fmt.Sprintf(
				"heat or the hardware lowered its clocks in %.1f %% of the readings of the last day, and in %.1f %% before", 100*slowed,
				100*was,
			),
			Hint: "check its fans, the air around it and its power",
		})
	}
	if top, was := hottest(day), hottest(before); len(before) >= leastBefore && was > 0 && top >= was+hotterBy {
		out = append(out, Finding{
			Rule: "hotter",
			Text: fmt.Sprintf(
				"its highest temperature of the last day is %d °C, and was %d °C in the %d hours before", top, was, len(before),
			),
			Hint: "check its fans and the air around it",
		})
	}
	if h.Rows != nil && h.Rows.Banks != nil && h.Rows.Banks.Low+h.Rows.Banks.None > 0 {
		out = append(out, Finding{
			Rule: "rows-left",
			Text: fmt.Sprintf("banks of its memory with few spare rows: %d, with none: %d", h.Rows.Banks.Low, h.Rows.Banks.None),
			Hint: "plan to exchange the board",
		})
	}
	return out
}

// split divides the history into the last day and what was before it.
func (y *History) split(now time.Time) (day, before []Hour) {
	for i := range y.Hours {
		if now.Sub(y.Hours[i].Start) < 24*time.Hour {
			return y.Hours[i:], y.Hours[:i]
		}
	}
	return nil, y.Hours
}

func sum(hours []Hour, count func(*Hour) uint64) (n uint64) {
	for i := range hours {
		n += count(&hours[i])
	}
	return n
}

// part is the part of the readings in which the clocks were lowered.
func part(hours []Hour) float64 {
	slowed, readings := 0, 0
	for i := range hours {
		slowed += hours[i].Slowed
		readings += hours[i].Readings
	}
	return float64(slowed) / float64(max(1, readings))
}

func hottest(hours []Hour) (top int) {
	for i := range hours {
		top = max(top, hours[i].Hottest)
	}
	return top
}
