package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
)

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
	if r.Temperature != nil {
		text := fmt.Sprintf("%d °C", *r.Temperature)
		if r.MemoryTemperature != nil {
			text += fmt.Sprintf(", memory %d °C", *r.MemoryTemperature)
		}
		if r.SlowdownTemperature != nil {
			text += fmt.Sprintf(", clocks are lowered from %d °C", *r.SlowdownTemperature)
		}
		add("temperature", "%s", text)
	}
	if len(r.Throttle) > 0 {
		add("throttle", "clocks are lowered: %s", strings.Join(r.Throttle, ", "))
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
