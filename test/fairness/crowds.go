package fairness

import "time"

// crowds are leases next to others with many processes: the GPU divides its time by processes.
func crowds() []Scenario {
	many := func(share float64, n int) Load { return Load{Share: share, Program: flood, Processes: n} }
	fast := func(l Load) Load { l.LowLatency = true; return l }
	heavy := Program{Work: 30 * ms, Think: 20 * ms}
	return []Scenario{
		{
			Name:  "low latency: 50/50, a flood of requests and training with three processes",
			Loads: []Load{fast(does(50, Program{Work: 10 * ms, Rate: 48})), many(50, 3)},
		},
		{Name: "55/45, 60 % of the time and training with eight processes", Loads: []Load{does(55, heavy), many(45, 8)}},
		{Name: "20/80, inference and training with eight processes", Loads: []Load{inference(20), many(80, 8)}},
		{
			Name:  "30/70, a service that joins a training with eight processes",
			Loads: []Load{{Share: 30, From: 40 * time.Second, Program: Program{Work: 30 * ms, Think: 70 * ms}}, many(70, 8)},
		},
	}
}
