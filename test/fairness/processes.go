package fairness

// manyProcesses are scenarios with leases of several processes next to leases of one: a GPU divides its time by processes, and a lease
// is all of them.
func manyProcesses() []Scenario {
	of := func(n int, l Load) Load { l.Processes = n; return l }
	fast := func(l Load) Load { l.LowLatency = true; return l }
	heavy := func(rate float64) Program { return Program{Work: 10 * ms, Rate: rate} }
	return []Scenario{
		{
			Name:  "55/45, data loader 60+40 ms and training of three processes",
			Loads: []Load{does(55, loader), of(3, training(45))},
			Warm:  after,
		},
		{
			Name:  "55/45, data loader 60+40 ms and training of eight processes",
			Loads: []Load{does(55, loader), of(8, training(45))},
			Warm:  after,
		},
		{Name: "20/80, inference and training of eight processes", Loads: []Load{inference(20), of(8, training(80))}},
		{Name: "30/70, inference of three processes and training", Loads: []Load{of(3, inference(30)), training(70)}},
		{
			Name:  "30/70, inference of eight processes above its share and training",
			Loads: []Load{of(8, inference(30)), training(70)},
			Warm:  after,
		},
		{
			Name:  "30/70, data loader of three processes and training",
			Loads: []Load{of(3, does(30, loader)), training(70)},
			Warm:  after,
		},
		{Name: "30/70, training of three processes and training", Loads: []Load{of(3, training(30)), training(70)}, Bound: true},
		{Name: "30/70, training and training of three processes", Loads: []Load{training(30), of(3, training(70))}, Bound: true},
		{Name: "30/70, training and training of eight processes", Loads: []Load{training(30), of(8, training(70))}, Bound: true},
		{
			Name:  "20/80, cheat: eight processes that each leave the GPU idle, and training",
			Loads: []Load{of(8, does(20, Program{Work: 10 * ms, Think: 90 * ms})), training(80)},
			Warm:  after,
		},
		{Name: "20/30/50, cheat: eight processes, inference and training", Loads: []Load{inference(20), of(8, training(30)), training(50)}},
		{
			Name:  "low latency: 50/50, a flood and training of three processes",
			Loads: []Load{fast(does(50, flood)), of(3, training(50))},
			Warm:  after,
		},
		{
			Name:  "low latency: 50/50, a flood and training of eight processes",
			Loads: []Load{fast(does(50, flood)), of(8, training(50))},
			Warm:  after,
		},
		{
			Name:  "low latency: 50/50, 40 requests/s of 10 ms and training of three processes",
			Loads: []Load{fast(does(50, heavy(40))), of(3, training(50))},
		},
		{
			Name:  "low latency: 50/50, 40 requests/s of 10 ms and training of eight processes",
			Loads: []Load{fast(does(50, heavy(40))), of(8, training(50))},
		},
		{Name: "low latency: 50/50, inference of three processes and training", Loads: []Load{fast(of(3, inference(50))), training(50)}},
	}
}
