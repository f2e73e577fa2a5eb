package fairness

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/quota"
)

const ms = time.Millisecond

// queues are loads that always have work queued, with these shares.
func queues(jitter float64, shares []float64, lengths ...time.Duration) []Load {
	var out []Load
	for i, s := range shares {
		out = append(out, Load{Share: s, Program: Program{Queue: lengths[i%len(lengths)], Jitter: jitter}})
	}
	return out
}

func equal(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

// Scenarios are the loads of the matrix.
func Scenarios() []Scenario {
	hostBound := func(share float64) Load { return Load{Share: share, Program: Program{Work: 10 * ms, Think: 30 * ms}} }
	synchronous := func(share float64) Load {
		return Load{Share: share, Program: Program{Work: ms, Think: 20 * time.Microsecond}}
	}
	queue := func(share float64) Load { return Load{Share: share, Program: Program{Queue: 50 * ms}} }
	bound := []Scenario{
		{Name: "30/70, queues 50 ms", Loads: queues(0, []float64{30, 70}, 50*ms), Bound: true},
		{Name: "10/90, queues 50 ms", Loads: queues(0, []float64{10, 90}, 50*ms), Bound: true},
		{Name: "50/50, queues 50 ms", Loads: queues(0, []float64{50, 50}, 50*ms), Bound: true},
		{Name: "10/20/30/40, queues 50 ms", Loads: queues(0, []float64{10, 20, 30, 40}, 50*ms), Bound: true},
		{Name: "8 equal, queues 50 ms", Loads: queues(0, equal(8), 50*ms), Bound: true},
		{Name: "16 equal, queues 50 ms", Loads: queues(0, equal(16), 50*ms), Bound: true, Warm: 40 * time.Second},
		{
			Name:  "8 equal, queues 50 ms, a host that is late by 1.5 ms",
			Loads: queues(0, equal(8), 50*ms),
			Bound: true,
			Late:  1500 * time.Microsecond,
		},
		{
			Name:  "16 equal, queues 50 ms, a host that is late by 1.5 ms",
			Loads: queues(0, equal(16), 50*ms),
			Bound: true,
			Warm:  40 * time.Second,
			Late:  1500 * time.Microsecond,
		},
		{Name: "30/70, queues 400/20 ms ±30 %", Loads: queues(0.3, []float64{30, 70}, 400*ms, 20*ms), Bound: true},
		{Name: "10/90, queues 400/5 ms ±30 %", Loads: queues(0.3, []float64{10, 90}, 400*ms, 5*ms), Bound: true},
		{
			Name:  "10/20/30/40, queues 200/50/100/20 ms ±30 %",
			Loads: queues(0.3, []float64{10, 20, 30, 40}, 200*ms, 50*ms, 100*ms, 20*ms),
			Bound: true,
		},
		{Name: "30/70, synchronous 1 ms and queue 50 ms", Loads: []Load{synchronous(30), queue(70)}, Bound: true},
		{Name: "50/50, synchronous 1 ms and queue 50 ms", Loads: []Load{synchronous(50), queue(50)}, Bound: true},
		{
			Name:         "30/70, host-bound 10+30 ms and queue 50 ms",
			Loads:        []Load{hostBound(30), queue(70)},
			AtLeastShare: true,
			Warm:         time.Minute,
		},
		{Name: "50/50, both host-bound 10+30 ms", Loads: []Load{hostBound(50), hostBound(50)}, AtLeastShare: true, Warm: time.Minute},
		{Name: "alone, queue 50 ms", Loads: []Load{queue(30)}, Bound: true},
		{
			Name: "join and leave",
			Loads: []Load{
				queue(30),
				{Share: 70, From: 60 * time.Second, Until: 200 * time.Second, Program: Program{Queue: 50 * ms}},
				{Share: 50, From: 110 * time.Second, Until: 160 * time.Second, Program: Program{Queue: 100 * ms}},
			},
			Bound: true,
		},
		{
			Name:         "50/50, one on and off every 1.2 s",
			Loads:        []Load{{Share: 50, Program: Program{Queue: 50 * ms, On: 1200 * ms, Off: 1200 * ms}}, queue(50)},
			AtLeastShare: true,
		},
		{Name: "30/70, queues 50 ms, the clock is set", Loads: queues(0, []float64{30, 70}, 50*ms), Bound: true, Jumps: true},
		{
			Name:  "30/70, queues 50 ms, another process for 5 % of the time",
			Loads: append(queues(0, []float64{30, 70}, 50*ms), Load{Outside: true, Program: Program{Work: 5 * ms, Think: 95 * ms}}),
			Bound: true,
		},
	}
	return slices.Concat(bound, lengthy(), demands(), cheats(), switching(), lowLatency(), manyProcesses())
}

// lengthy are leases whose kernels are longer than any slice.
func lengthy() []Scenario {
	return []Scenario{
		{
			Name: "50/50, kernels of 2 s",
			Loads: []Load{
				{Share: 50, Program: Program{Queue: 2 * time.Second, Kernel: 2 * time.Second}},
				{Share: 50, Program: Program{Queue: 2 * time.Second, Kernel: 2 * time.Second}},
			},
			Bound: true,
			Long:  600 * time.Second,
			Warm:  120 * time.Second,
		},
		{
			Name: "10/90, kernels of 2 s, frozen for up to 30 s",
			Loads: []Load{
				{Share: 10, Program: Program{Queue: 2 * time.Second, Kernel: 2 * time.Second}},
				{Share: 90, Program: Program{Queue: 2 * time.Second, Kernel: 2 * time.Second}},
			},
			Config: quota.Config{MaxFrozen: 30 * time.Second},
			Bound:  true,
			Long:   1200 * time.Second,
			Warm:   300 * time.Second,
		},
	}
}
