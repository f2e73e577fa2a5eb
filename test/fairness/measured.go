package fairness

// measured is what leases that leave the GPU idle at times keep today, with every sampler: the greatest figures of 1, 3 and 8 seeds, with
// a margin. It is not what they should have, which is the target of leases that keep the GPU busy: a rule that gives slices to all does
// not reach it. A figure that gets worse fails, and one that gets better is to be lowered here.
var measured = map[string]Limits{
	"30/70, host-bound 10+30 ms and queue 50 ms":                      {RMS10: 11.5, Busy: 91, Latency: 0 * ms},
	"50/50, both host-bound 10+30 ms":                                 {RMS10: 5.5, Busy: 99, Latency: 0 * ms},
	"50/50, one on and off every 1.2 s":                               {RMS10: 26.5, Busy: 60, Latency: 0 * ms},
	"20/80, inference and training":                                   {RMS10: 25, Busy: 63, Latency: 1100 * ms},
	"20/30/50, inference and two trainings":                           {RMS10: 13.5, Busy: 69, Latency: 1300 * ms},
	"15/15/70, two inferences and training":                           {RMS10: 11.5, Busy: 86, Latency: 100 * ms},
	"15/15/30/40, two inferences and two trainings":                   {RMS10: 7, Busy: 89, Latency: 100 * ms},
	"20/80, requests at random and training":                          {RMS10: 16, Busy: 79, Latency: 2400 * ms},
	"20/30/50, requests at random and two trainings":                  {RMS10: 10.5, Busy: 81, Latency: 2300 * ms},
	"5/95, inference above its share and training":                    {RMS10: 4.5, Busy: 93, Latency: 0 * ms},
	"50/50, data loader 60+40 ms and training":                        {RMS10: 15, Busy: 92, Latency: 0 * ms},
	"30/70, data loader 60+40 ms and training":                        {RMS10: 13, Busy: 80, Latency: 0 * ms},
	"4×10/60, notebooks 1+9 s and training":                           {RMS10: 10.5, Busy: 63, Latency: 13300 * ms},
	"50/50, a demand that changes each minute, and training":          {RMS10: 20.5, Busy: 82, Latency: 0 * ms},
	"20/80, cheat: 3 s interactive and 1 s flood, and training":       {RMS10: 18.5, Busy: 67, Latency: 0 * ms},
	"10/90, cheat: 3 s interactive and 1 s flood, and training":       {RMS10: 6, Busy: 89, Latency: 0 * ms},
	"20/80, cheat: 8 s interactive and 2 s flood, and training":       {RMS10: 21, Busy: 64, Latency: 0 * ms},
	"10/90, cheat: 60 s interactive, then 60 s flood, and training":   {RMS10: 7, Busy: 91, Latency: 0 * ms},
	"20/80, cheat: 1 s of work launched at a freeze, and training":    {RMS10: 35, Busy: 95, Latency: 6200 * ms},
	"10/90, cheat: sleeps for 20 s, floods for 20 s, and training":    {RMS10: 7.5, Busy: 92, Latency: 0 * ms},
	"20/80, inference and training, slices of 2 ms":                   {RMS10: 25, Busy: 63, Latency: 1100 * ms},
	"20/80, inference and training, whole kernels of 5 ms":            {RMS10: 25, Busy: 63, Latency: 1100 * ms},
	"20/80, inference and training, whole kernels of 20 ms":           {RMS10: 24, Busy: 64, Latency: 1100 * ms},
	"20/80, inference and training, whole kernels of 200 ms":          {RMS10: 18, Busy: 74, Latency: 1100 * ms},
	"20/80, requests at random and training, whole kernels of 200 ms": {RMS10: 13, Busy: 82, Latency: 0 * ms},
}
