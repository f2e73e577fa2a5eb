package cli_test

import "github.com/gpushare/gpushare/api"

// sensedNode is labNode with sensors: all of GPU 1, and few of GPU 0.
func sensedNode() *api.Status {
	s := labNode()
	for i := range s.GPUs {
		switch g := &s.GPUs[i]; g.UUID {
		case gpu1:
			g.Sensors = &api.Sensors{
				ReadAt:            noon,
				Temperature:       ptr(84),
				MemoryTemperature: ptr(90),
				PowerWatts:        ptr(297.6),
				PowerLimitWatts:   ptr(300.0),
				Throttle:          []string{"power-cap", "thermal"},
				Clocks:            &api.Clocks{SM: 1155, MaxSM: 1410, Memory: 1593},
				FanPercent:        ptr(55),
			}
			g.Health = &api.GPUHealth{State: api.HealthOK, Readings: &api.HealthReadings{ReadAt: noon, SlowdownTemperature: ptr(89)}}
		case gpu0:
			g.Sensors = &api.Sensors{ReadAt: noon, MemoryTemperature: ptr(41), PowerLimitWatts: ptr(400.0)}
		}
	}
	return s
}
