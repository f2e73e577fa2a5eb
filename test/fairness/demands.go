package fairness

import (
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// training is a load that keeps the GPU busy.
func training(share float64) Load { return Load{Share: share, Program: Program{Queue: 50 * ms}} }

// inference is a service that answers one request after the other: 5 ms on the GPU, 45 ms on the host.
func inference(share float64) Load { return Load{Share: share, Program: service} }

var (
	service  = Program{Work: 5 * ms, Think: 45 * ms}
	flood    = Program{Queue: 50 * ms}
	loader   = Program{Work: 60 * ms, Think: 40 * ms}
	notebook = Program{Work: time.Second, Kernel: 5 * ms, Think: 9 * time.Second}
	atRandom = Program{Work: 5 * ms, Rate: 20}
)

// after is the time after which the leases of a demand are known.
const after = time.Minute

func does(share float64, p Program) Load { return Load{Share: share, Program: p} }

func changes(share float64, list ...Phase) Load { return Load{Share: share, Phases: list} }

// demands are scenarios with leases that use less than their share, at times or always.
func demands() []Scenario {
	return []Scenario{
		{Name: "20/80, inference and training", Loads: []Load{inference(20), training(80)}},
		{Name: "20/30/50, inference and two trainings", Loads: []Load{inference(20), training(30), training(50)}},
		{Name: "15/15/70, two inferences and training", Loads: []Load{inference(15), inference(15), training(70)}},
		{
			Name:  "15/15/30/40, two inferences and two trainings",
			Loads: []Load{inference(15), inference(15), training(30), training(40)},
		},
		{Name: "20/80, requests at random and training", Loads: []Load{does(20, atRandom), training(80)}},
		{Name: "20/30/50, requests at random and two trainings", Loads: []Load{does(20, atRandom), training(30), training(50)}},
		{Name: "5/95, inference above its share and training", Loads: []Load{inference(5), training(95)}, Warm: after},
		{Name: "50/50, data loader 60+40 ms and training", Loads: []Load{does(50, loader), training(50)}},
		{Name: "30/70, data loader 60+40 ms and training", Loads: []Load{does(30, loader), training(70)}},
		{
			Name:  "4×10/60, notebooks 1+9 s and training",
			Loads: []Load{does(10, notebook), does(10, notebook), does(10, notebook), does(10, notebook), training(60)},
		},
		{
			Name: "50/50, a demand that changes each minute, and training",
			Loads: []Load{
				changes(50, Phase{time.Minute, service}, Phase{time.Minute, flood}),
				training(50),
			},
			Cheats: true,
		},
	}
}

const (
	floodAtFreeze     = "20/80, cheat: a flood with 1 s of work launched at each freeze, and training"
	burstNextToLoader = "20/40/40, cheat: 3 s interactive and 1 s flood, data loader 38+62 ms and training"
)

// cheats are scenarios with a lease that tries to get more than its share.
func cheats() []Scenario {
	return []Scenario{
		{
			Name:   "20/80, cheat: 3 s interactive and 1 s flood, and training",
			Loads:  []Load{changes(20, Phase{3 * time.Second, service}, Phase{time.Second, flood}), training(80)},
			Cheats: true,
		},
		{
			Name:   "10/90, cheat: 3 s interactive and 1 s flood, and training",
			Loads:  []Load{changes(10, Phase{3 * time.Second, service}, Phase{time.Second, flood}), training(90)},
			Cheats: true,
		},
		{
			Name:   "20/80, cheat: 8 s interactive and 2 s flood, and training",
			Loads:  []Load{changes(20, Phase{8 * time.Second, service}, Phase{2 * time.Second, flood}), training(80)},
			Cheats: true,
		},
		{
			Name:   "10/90, cheat: 60 s interactive, then 60 s flood, and training",
			Loads:  []Load{changes(10, Phase{time.Minute, service}, Phase{time.Minute, flood}), training(90)},
			Cheats: true,
		},
		{
			Name: burstNextToLoader,
			Loads: []Load{
				changes(20, Phase{3 * time.Second, service}, Phase{time.Second, flood}),
				does(40, Program{Work: 38 * ms, Think: 62 * ms}),
				training(40),
			},
			Cheats: true,
		},
		{
			Name:   "20/80, cheat: 1 s of work launched at a freeze, and training",
			Loads:  []Load{{Share: 20, Program: service, AtFreeze: time.Second}, training(80)},
			Cheats: true,
		},
		{
			Name:   floodAtFreeze,
			Loads:  []Load{{Share: 20, Program: flood, AtFreeze: time.Second}, training(80)},
			Cheats: true,
			Warm:   after,
		},
		{
			Name:   "20/80, cheat: eight processes, and training",
			Loads:  []Load{{Share: 20, Program: flood, Processes: 8}, training(80)},
			Bound:  true,
			Cheats: true,
		},
		{
			Name:   "10/90, cheat: sleeps for 20 s, floods for 20 s, and training",
			Loads:  []Load{does(10, Program{Queue: 50 * ms, On: 20 * time.Second, Off: 20 * time.Second}), training(90)},
			Cheats: true,
		},
	}
}

// switching are scenarios on a GPU whose processes run one after the other.
func switching() []Scenario {
	return []Scenario{
		{
			Name:      "20/80, inference and training, slices of 2 ms",
			Loads:     []Load{inference(20), training(80)},
			Switching: engine.Switching{Slice: 2 * ms},
		},
		{
			Name:      "20/80, inference and training, whole kernels of 5 ms",
			Loads:     []Load{inference(20), training(80)},
			Switching: engine.Switching{Slice: 2 * ms, Whole: true},
		},
		{
			Name:      "20/80, inference and training, whole kernels of 20 ms",
			Loads:     []Load{inference(20), does(80, Program{Queue: 60 * ms, Kernel: 20 * ms})},
			Switching: engine.Switching{Slice: 2 * ms, Whole: true},
		},
		{
			Name:      "20/80, inference and training, whole kernels of 200 ms",
			Loads:     []Load{inference(20), does(80, Program{Queue: 400 * ms, Kernel: 200 * ms})},
			Switching: engine.Switching{Slice: 2 * ms, Whole: true},
		},
		{
			Name:      "20/80, requests at random and training, whole kernels of 200 ms",
			Loads:     []Load{does(20, atRandom), does(80, Program{Queue: 400 * ms, Kernel: 200 * ms})},
			Switching: engine.Switching{Slice: 2 * ms, Whole: true},
		},
		{
			Name:      "30/70, whole kernels of 200 ms",
			Loads:     []Load{does(30, Program{Queue: 200 * ms, Kernel: 200 * ms}), does(70, Program{Queue: 200 * ms, Kernel: 200 * ms})},
			Switching: engine.Switching{Slice: 2 * ms, Whole: true},
			Bound:     true,
		},
	}
}
