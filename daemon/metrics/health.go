package metrics

import "github.com/gpushare/gpushare/api"

var healthStates = []string{api.HealthOK, api.HealthWarning, api.HealthClosed, api.HealthTesting}

// sensors adds what changes within a second.
func (c *collection) sensors(g *api.GPUStatus) {
	s, index := g.Sensors, c.index[g.UUID]
	if s == nil {
		return
	}
	c.add(gpuSensorsRead, seconds(s.ReadAt), index, g.UUID)
	whole := func(m *Metric, value *int, of float64) {
		if value != nil {
			c.add(m, float64(*value)/of, index, g.UUID)
		}
	}
	whole(gpuTemperature, s.Temperature, 1)
	whole(gpuMemoryTemp, s.MemoryTemperature, 1)
	whole(gpuFan, s.FanPercent, 100)
	for _, reason := range s.Throttle {
		c.add(gpuThrottled, 1, index, g.UUID, reason)
	}
	for _, power := range []struct {
		metric *Metric
		value  *float64
	}{{gpuPower, s.PowerWatts}, {gpuPowerLimit, s.PowerLimitWatts}} {
		if power.value != nil {
			c.add(power.metric, *power.value, index, g.UUID)
		}
	}
	if k := s.Clocks; k != nil {
		const mega = 1e6
		for clock, mhz := range map[string]uint32{"sm": k.SM, "memory": k.Memory} {
			if mhz > 0 {
				c.add(gpuClock, float64(mhz)*mega, index, g.UUID, clock)
			}
		}
	}
}

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
