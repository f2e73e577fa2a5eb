package metrics

import "github.com/gpushare/gpushare/api"

var healthStates = []string{api.HealthOK, api.HealthWarning, api.HealthClosed, api.HealthTesting}

// health adds the health of a GPU. Readings of a GPU that does not answer would be old values with a new time.
func (c *collection) health(g *api.GPUStatus, answers bool) {
	h, index := g.Health, c.index[g.UUID]
	if h == nil {
		return
	}
	for _, state := range healthStates {
		c.addBool(gpuHealth, h.State == state, index, g.UUID, state)
	}
	r := h.Readings
	if r == nil || !answers {
		return
	}
	c.add(gpuHealthRead, seconds(r.ReadAt), index, g.UUID)
	if r.Temperature != nil {
		c.add(gpuTemperature, float64(*r.Temperature), index, g.UUID)
	}
	if r.MemoryTemperature != nil {
		c.add(gpuMemoryTemp, float64(*r.MemoryTemperature), index, g.UUID)
	}
	for _, reason := range r.Throttle {
		c.add(gpuThrottled, 1, index, g.UUID, reason)
	}
	for _, count := range []struct {
		metric *Metric
		value  *uint64
	}{{gpuCorrected, r.CorrectedErrors}, {gpuUncorrected, r.UncorrectedErrors}, {gpuPCIeReplays, r.PCIeReplays}} {
		if count.value != nil {
			c.add(count.metric, float64(*count.value), index, g.UUID)
		}
	}
	if rows := r.Rows; rows != nil {
		c.add(gpuRows, float64(rows.Corrected), index, g.UUID, "corrected")
		c.add(gpuRows, float64(rows.Uncorrected), index, g.UUID, "uncorrected")
		c.addBool(gpuRowsPending, rows.Pending, index, g.UUID)
		c.addBool(gpuRowsFailed, rows.Failed, index, g.UUID)
	}
	if n := r.NVLinkErrors; n != nil {
		c.add(gpuNVLinkErrors, float64(n.CRC), index, g.UUID, "crc")
		c.add(gpuNVLinkErrors, float64(n.Replay), index, g.UUID, "replay")
		c.add(gpuNVLinkErrors, float64(n.Recovery), index, g.UUID, "recovery")
	}
}
