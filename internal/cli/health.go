package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
)

// sensorRows are the sensors of a GPU, for 'gpu show'.
func sensorRows(s *api.Sensors, h *api.GPUHealth) (rows [][]string) {
	if s == nil && h != nil && h.Readings != nil { // of a daemon that does not have them apart
		r := h.Readings
		s = &api.Sensors{ReadAt: r.ReadAt, Temperature: r.Temperature, MemoryTemperature: r.MemoryTemperature, Throttle: r.Throttle}
	}
	if s == nil {
		return nil
	}
	add := func(name string, parts ...string) {
		if parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" }); len(parts) > 0 {
			rows = append(rows, []string{name, strings.Join(parts, ", ")})
		}
	}
	number := func(format string, n *int) string {
		if n == nil {
			return ""
		}
		return fmt.Sprintf(format, *n)
	}
	slowdown := ""
	if h != nil && h.Readings != nil {
		slowdown = number("clocks are lowered from %d °C", h.Readings.SlowdownTemperature)
	}
	if s.Temperature != nil || s.MemoryTemperature != nil {
		add("temperature", number("%d °C", s.Temperature), number("memory %d °C", s.MemoryTemperature), slowdown)
	}
	if s.PowerWatts != nil || s.PowerLimitWatts != nil {
		add("power", powerText(s))
	}
	if c := s.Clocks; c != nil {
		add("clocks", clockText("SM", c.SM, c.MaxSM), clockText("memory", c.Memory, 0))
	}
	if len(s.Throttle) > 0 {
		add("throttle", "clocks are lowered: "+strings.Join(s.Throttle, ", "))
	}
	add("fan", number("%d%%", s.FanPercent))
	return rows
}

// powerText is what a GPU draws, and its limit.
func powerText(s *api.Sensors) string {
	draw := "-"
	if s.PowerWatts != nil {
		draw = fmt.Sprintf("%.0f W", *s.PowerWatts)
	}
	if s.PowerLimitWatts == nil {
		return draw
	}
	return fmt.Sprintf("%s of %.0f W", draw, *s.PowerLimitWatts)
}

// clockText is one clock; empty if it is not known.
func clockText(name string, mhz, most uint32) string {
	switch {
	case mhz == 0:
		return ""
	case most == 0:
		return fmt.Sprintf("%s %d MHz", name, mhz)
	}
	return fmt.Sprintf("%s %d of %d MHz", name, mhz, most)
}

// healthRows are the health of a GPU and its last readings, for 'gpu show'.
func healthRows(h *api.GPUHealth) (rows [][]string) {
	if h == nil {
		return nil
	}
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{name, fmt.Sprintf(format, args...)})
	}
	text := h.State
	if h.Since != nil {
		text += " since " + h.Since.Local().Format(time.DateTime)
	}
	add("health", "%s", text+join(": ", h.Reason))
	r := h.Readings
	if r == nil {
		return rows
	}
	if r.CorrectedErrors != nil && r.UncorrectedErrors != nil {
		add("memory errors", "%d corrected, %d uncorrected", *r.CorrectedErrors, *r.UncorrectedErrors)
	}
	if rows := r.Rows; rows != nil {
		text := fmt.Sprintf("%d of corrected, %d of uncorrected errors", rows.Corrected, rows.Uncorrected)
		if rows.Pending {
			text += ", more at the next reset"
		}
		if rows.Failed {
			text += ", one could not be replaced"
		}
		if rows.FewLeft != nil && rows.NoneLeft != nil && *rows.FewLeft+*rows.NoneLeft > 0 {
			text += fmt.Sprintf("; banks with few spare rows: %d, with none: %d", *rows.FewLeft, *rows.NoneLeft)
		}
		add("replaced rows", "%s", text)
	}
	if n := r.NVLinkErrors; n != nil {
		add("NVLink errors", "%d CRC, %d replays, %d recoveries", n.CRC, n.Replay, n.Recovery)
	}
	if r.PCIeReplays != nil {
		add("PCIe replays", "%d", *r.PCIeReplays)
	}
	if r.Recovery != "" && r.Recovery != "none" {
		add("recovery", "the driver says that it needs: %s", r.Recovery)
	}
	add("health read", "%s", r.ReadAt.Local().Format(time.DateTime))
	return rows
}
