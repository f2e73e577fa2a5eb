package fairness

// lack is what a scenario with leases that leave the GPU idle at times does not keep of the target, with a kind of samplers.
type lack struct {
	scenario string
	samplers samplers
	Limits
}

// The reasons why a scenario misses the target.
const (
	equalParts = "processes get equal parts: next to another the work of each takes twice as long, so that it does not have its demand " +
		"side by side either"
	wholeKernels = "a kernel is not interrupted: each request waits for one of 200 ms, so that a service has a fifth of its demand side by side"
	bursts       = "each sample names one process, seven a second: a burst is known when it has lasted for two or three seconds, and is paid " +
		"back after that"
	launched    = "a queue is not interrupted: a second of work that is launched at a freeze runs as a whole"
	wholeShare  = "four bursts with equal parts take five seconds, and each is a whole share: by samples that is not distinguished from more"
	trials      = "in a trial a lease has the GPU to itself, and the samples of processes say little of half a second"
	lateAnswers = "what a lease leaves idle is known three seconds later, or not for a minute"
	fewSamples  = "a driver that samples twice or once a second names one process in each sample"
)

// lacking has the greatest figures of 1, 3 and 6 seeds, with a margin. A figure that gets worse fails, and one that gets better is to
// be lowered here. What is not in it keeps the target.
var lacking = []lack{
	{
		"10/90, cheat: 3 s interactive and 1 s flood, and training",
		series,
		Limits{RMS10: 3.5, Busy: 97, Latency: 20 * ms, Gain: 11, Reason: bursts},
	},
	{
		"10/90, cheat: 3 s interactive and 1 s flood, and training",
		lateSeries,
		Limits{RMS10: 3.5, Busy: 97, Latency: 20 * ms, Gain: 9, Reason: bursts},
	},
	{
		"10/90, cheat: 3 s interactive and 1 s flood, and training",
		noSeries,
		Limits{RMS10: 4.2, Busy: 97, Latency: 20 * ms, Gain: 9, Reason: bursts},
	},
	{
		"10/90, cheat: 3 s interactive and 1 s flood, and training",
		slow,
		Limits{RMS10: 7, Busy: 93, Latency: 20 * ms, Gain: 12, Reason: fewSamples},
	},
	{
		"10/90, cheat: 60 s interactive, then 60 s flood, and training",
		series,
		Limits{RMS10: 5.5, Busy: 97, Latency: 20 * ms, Gain: 16, Reason: bursts},
	},
	{
		"10/90, cheat: 60 s interactive, then 60 s flood, and training",
		lateSeries,
		Limits{RMS10: 5, Busy: 97, Latency: 20 * ms, Gain: 11, Reason: bursts},
	},
	{
		"10/90, cheat: 60 s interactive, then 60 s flood, and training",
		noSeries,
		Limits{RMS10: 5, Busy: 97, Latency: 20 * ms, Gain: 11, Reason: bursts},
	},
	{
		"10/90, cheat: 60 s interactive, then 60 s flood, and training",
		slow,
		Limits{RMS10: 9.5, Busy: 95, Latency: 20 * ms, Gain: 30, Reason: fewSamples},
	},
	{
		"10/90, cheat: sleeps for 20 s, floods for 20 s, and training",
		series,
		Limits{RMS10: 8.5, Busy: 98, Latency: 20 * ms, Gain: 16, Reason: bursts},
	},
	{
		"10/90, cheat: sleeps for 20 s, floods for 20 s, and training",
		lateSeries,
		Limits{RMS10: 8.5, Busy: 98, Latency: 20 * ms, Gain: 13, Reason: bursts},
	},
	{
		"10/90, cheat: sleeps for 20 s, floods for 20 s, and training",
		noSeries,
		Limits{RMS10: 7, Busy: 96, Latency: 20 * ms, Gain: 9, Reason: bursts},
	},
	{
		"10/90, cheat: sleeps for 20 s, floods for 20 s, and training",
		slow,
		Limits{RMS10: 10, Busy: 95, Latency: 20 * ms, Gain: 25, Reason: fewSamples},
	},
	{
		burstNextToLoader,
		series,
		Limits{RMS10: 14, Busy: 94, Latency: 260 * ms, Gain: 5, Reason: equalParts},
	},
	{
		burstNextToLoader,
		lateSeries,
		Limits{RMS10: 14, Busy: 93, Latency: 80 * ms, Gain: 5.5, Reason: equalParts},
	},
	{
		burstNextToLoader,
		noSeries,
		Limits{RMS10: 14, Busy: 91, Latency: 520 * ms, Gain: 7, Reason: equalParts},
	},
	{
		burstNextToLoader,
		slow,
		Limits{RMS10: 14.5, Busy: 91, Latency: 60 * ms, Reason: fewSamples},
	},
	{"15/15/30/40, two inferences and two trainings", series, Limits{RMS10: 3, Busy: 96, Latency: 20 * ms, Reason: trials}},
	{"15/15/30/40, two inferences and two trainings", lateSeries, Limits{RMS10: 3, Busy: 91, Latency: 20 * ms, Reason: lateAnswers}},
	{"15/15/30/40, two inferences and two trainings", noSeries, Limits{RMS10: 4, Busy: 89, Latency: 20 * ms, Reason: trials}},
	{"15/15/30/40, two inferences and two trainings", slow, Limits{RMS10: 5.5, Busy: 89, Latency: 40 * ms, Reason: fewSamples}},
	{"15/15/70, two inferences and training", series, Limits{RMS10: 3, Busy: 97, Latency: 20 * ms, Reason: trials}},
	{"15/15/70, two inferences and training", lateSeries, Limits{RMS10: 6, Busy: 97, Latency: 20 * ms, Reason: lateAnswers}},
	{"15/15/70, two inferences and training", noSeries, Limits{RMS10: 9, Busy: 82, Latency: 30 * ms, Reason: trials}},
	{"15/15/70, two inferences and training", slow, Limits{RMS10: 5, Busy: 92, Latency: 40 * ms, Reason: fewSamples}},
	{"20/30/50, inference and two trainings", lateSeries, Limits{RMS10: 3, Busy: 94, Latency: 20 * ms, Reason: lateAnswers}},
	{"20/30/50, inference and two trainings", noSeries, Limits{RMS10: 3, Busy: 95, Latency: 20 * ms, Reason: trials}},
	{"20/30/50, inference and two trainings", slow, Limits{RMS10: 8.5, Busy: 84, Latency: 30 * ms, Reason: fewSamples}},
	{"20/30/50, requests at random and two trainings", lateSeries, Limits{RMS10: 3, Busy: 94, Latency: 20 * ms, Reason: lateAnswers}},
	{"20/30/50, requests at random and two trainings", noSeries, Limits{RMS10: 3.5, Busy: 96, Latency: 650 * ms, Reason: trials}},
	{"20/30/50, requests at random and two trainings", slow, Limits{RMS10: 6.5, Busy: 91, Latency: 6150 * ms, Reason: fewSamples}},
	{
		"20/80, cheat: 1 s of work launched at a freeze, and training",
		series,
		Limits{RMS10: 11, Busy: 97, Latency: 3580 * ms, Gain: 9, Reason: bursts},
	},
	{
		"20/80, cheat: 1 s of work launched at a freeze, and training",
		noSeries,
		Limits{RMS10: 4.5, Busy: 97, Latency: 20 * ms, Reason: bursts},
	},
	{
		"20/80, cheat: 1 s of work launched at a freeze, and training",
		slow,
		Limits{RMS10: 15, Busy: 96, Latency: 5420 * ms, Gain: 15, Reason: fewSamples},
	},
	{
		"20/80, cheat: 3 s interactive and 1 s flood, and training",
		series,
		Limits{RMS10: 6, Busy: 97, Latency: 20 * ms, Gain: 3.5, Reason: bursts},
	},
	{
		"20/80, cheat: 3 s interactive and 1 s flood, and training",
		lateSeries,
		Limits{RMS10: 5.5, Busy: 97, Latency: 20 * ms, Gain: 3.5, Reason: bursts},
	},
	{
		"20/80, cheat: 3 s interactive and 1 s flood, and training",
		noSeries,
		Limits{RMS10: 6.5, Busy: 97, Latency: 20 * ms, Gain: 3.5, Reason: bursts},
	},
	{
		"20/80, cheat: 3 s interactive and 1 s flood, and training",
		slow,
		Limits{RMS10: 10.5, Busy: 85, Latency: 20 * ms, Reason: fewSamples},
	},
	{"20/80, cheat: 8 s interactive and 2 s flood, and training", series, Limits{RMS10: 8, Busy: 97, Latency: 20 * ms, Reason: bursts}},
	{"20/80, cheat: 8 s interactive and 2 s flood, and training", lateSeries, Limits{RMS10: 7, Busy: 97, Latency: 20 * ms, Reason: bursts}},
	{"20/80, cheat: 8 s interactive and 2 s flood, and training", noSeries, Limits{RMS10: 8, Busy: 97, Latency: 20 * ms, Reason: bursts}},
	{
		"20/80, cheat: 8 s interactive and 2 s flood, and training",
		slow,
		Limits{RMS10: 10.5, Busy: 85, Latency: 20 * ms, Reason: fewSamples},
	},
	{"20/80, inference and training", noSeries, Limits{RMS10: 4.5, Busy: 97, Latency: 20 * ms, Reason: trials}},
	{"20/80, inference and training", slow, Limits{RMS10: 8, Busy: 84, Latency: 60 * ms, Reason: fewSamples}},
	{"20/80, inference and training, slices of 2 ms", noSeries, Limits{RMS10: 4.5, Busy: 97, Latency: 20 * ms, Reason: trials}},
	{"20/80, inference and training, slices of 2 ms", slow, Limits{RMS10: 9.5, Busy: 83, Latency: 1030 * ms, Reason: fewSamples}},
	{"20/80, inference and training, whole kernels of 20 ms", series, Limits{RMS10: 3, Busy: 97, Latency: 20 * ms, Reason: equalParts}},
	{
		"20/80, inference and training, whole kernels of 20 ms",
		lateSeries,
		Limits{RMS10: 6.5, Busy: 97, Latency: 20 * ms, Reason: equalParts},
	},
	{"20/80, inference and training, whole kernels of 20 ms", noSeries, Limits{RMS10: 3.5, Busy: 97, Latency: 20 * ms, Reason: equalParts}},
	{"20/80, inference and training, whole kernels of 20 ms", slow, Limits{RMS10: 9, Busy: 83, Latency: 300 * ms, Reason: fewSamples}},
	{
		"20/80, inference and training, whole kernels of 200 ms",
		series,
		Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: wholeKernels},
	},
	{
		"20/80, inference and training, whole kernels of 200 ms",
		lateSeries,
		Limits{RMS10: 9.5, Busy: 97, Latency: 20 * ms, Reason: wholeKernels},
	},
	{
		"20/80, inference and training, whole kernels of 200 ms",
		noSeries,
		Limits{RMS10: 8, Busy: 97, Latency: 20 * ms, Reason: wholeKernels},
	},
	{"20/80, inference and training, whole kernels of 200 ms", slow, Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: fewSamples}},
	{"20/80, inference and training, whole kernels of 5 ms", noSeries, Limits{RMS10: 16, Busy: 72, Latency: 40 * ms, Reason: trials}},
	{"20/80, inference and training, whole kernels of 5 ms", slow, Limits{RMS10: 7, Busy: 84, Latency: 260 * ms, Reason: fewSamples}},
	{"20/80, requests at random and training", slow, Limits{RMS10: 7.5, Busy: 88, Latency: 5110 * ms, Reason: fewSamples}},
	{
		"20/80, requests at random and training, whole kernels of 200 ms",
		series,
		Limits{RMS10: 10, Busy: 95, Latency: 20 * ms, Reason: wholeKernels},
	},
	{
		"20/80, requests at random and training, whole kernels of 200 ms",
		lateSeries,
		Limits{RMS10: 10.5, Busy: 95, Latency: 20 * ms, Reason: wholeKernels},
	},
	{
		"20/80, requests at random and training, whole kernels of 200 ms",
		noSeries,
		Limits{RMS10: 10, Busy: 90, Latency: 20 * ms, Reason: wholeKernels},
	},
	{
		"20/80, requests at random and training, whole kernels of 200 ms",
		slow,
		Limits{RMS10: 8.5, Busy: 93, Latency: 20 * ms, Reason: fewSamples},
	},
	{"30/70, data loader 60+40 ms and training", series, Limits{RMS10: 7, Busy: 95, Latency: 20 * ms, Reason: equalParts}},
	{"30/70, data loader 60+40 ms and training", lateSeries, Limits{RMS10: 6.5, Busy: 96, Latency: 20 * ms, Reason: equalParts}},
	{"30/70, data loader 60+40 ms and training", noSeries, Limits{RMS10: 13, Busy: 77, Latency: 20 * ms, Reason: equalParts}},
	{"30/70, data loader 60+40 ms and training", slow, Limits{RMS10: 9.5, Busy: 87, Latency: 20 * ms, Reason: fewSamples}},
	{"30/70, host-bound 10+30 ms and queue 50 ms", series, Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: equalParts}},
	{"30/70, host-bound 10+30 ms and queue 50 ms", lateSeries, Limits{RMS10: 8, Busy: 97, Latency: 20 * ms, Reason: equalParts}},
	{"30/70, host-bound 10+30 ms and queue 50 ms", noSeries, Limits{RMS10: 5.5, Busy: 97, Latency: 20 * ms, Reason: equalParts}},
	{"30/70, host-bound 10+30 ms and queue 50 ms", slow, Limits{RMS10: 7, Busy: 96, Latency: 20 * ms, Reason: fewSamples}},
	{
		"4×10/60, notebooks 1+9 s and training",
		series,
		Limits{RMS10: 7, Busy: 94, Latency: 14000 * ms, Median: 3000 * ms, Reason: wholeShare},
	},
	{
		"4×10/60, notebooks 1+9 s and training",
		lateSeries,
		Limits{RMS10: 6, Busy: 94, Latency: 13000 * ms, Median: 2500 * ms, Reason: wholeShare},
	},
	{"4×10/60, notebooks 1+9 s and training", noSeries, Limits{RMS10: 8, Busy: 69, Latency: 8500 * ms, Reason: wholeShare}},
	{"4×10/60, notebooks 1+9 s and training", slow, Limits{RMS10: 5.5, Busy: 87, Latency: 16000 * ms, Reason: fewSamples}},
	{"5/95, inference above its share and training", series, Limits{RMS10: 3, Busy: 97, Latency: 20 * ms, Reason: bursts}},
	{"5/95, inference above its share and training", lateSeries, Limits{RMS10: 3, Busy: 97, Latency: 20 * ms, Reason: bursts}},
	{"5/95, inference above its share and training", noSeries, Limits{RMS10: 3, Busy: 97, Latency: 20 * ms, Reason: bursts}},
	{"5/95, inference above its share and training", slow, Limits{RMS10: 4, Busy: 95, Latency: 20 * ms, Reason: fewSamples}},
	{floodAtFreeze, series, Limits{RMS10: 3, Busy: 97, Gain: 8, Reason: launched}},
	{floodAtFreeze, lateSeries, Limits{RMS10: 3, Busy: 97, Gain: 6, Reason: launched}},
	{floodAtFreeze, noSeries, Limits{RMS10: 4.5, Busy: 97, Gain: 15, Reason: launched}},
	{floodAtFreeze, slow, Limits{RMS10: 4.5, Busy: 97, Gain: 13, Reason: fewSamples}},
	{
		"50/50, a demand that changes each minute, and training",
		series,
		Limits{RMS10: 4, Busy: 97, Latency: 20 * ms, Gain: 6, Reason: bursts},
	},
	{
		"50/50, a demand that changes each minute, and training",
		lateSeries,
		Limits{RMS10: 7.5, Busy: 95, Latency: 20 * ms, Gain: 6, Reason: bursts},
	},
	{
		"50/50, a demand that changes each minute, and training",
		noSeries,
		Limits{RMS10: 13, Busy: 90, Latency: 20 * ms, Gain: 14, Reason: bursts},
	},
	{
		"50/50, a demand that changes each minute, and training",
		slow,
		Limits{RMS10: 13, Busy: 89, Latency: 20 * ms, Gain: 12, Reason: fewSamples},
	},
	{"50/50, both host-bound 10+30 ms", series, Limits{RMS10: 4, Busy: 97, Latency: 20 * ms, Reason: equalParts}},
	{"50/50, both host-bound 10+30 ms", slow, Limits{RMS10: 5, Busy: 97, Latency: 20 * ms, Reason: fewSamples}},
	{"50/50, data loader 60+40 ms and training", series, Limits{RMS10: 13, Busy: 95, Latency: 20 * ms, Reason: ownShare}},
	{"50/50, data loader 60+40 ms and training", lateSeries, Limits{RMS10: 14, Busy: 94, Latency: 20 * ms, Reason: equalParts}},
	{"50/50, data loader 60+40 ms and training", noSeries, Limits{RMS10: 14.5, Busy: 81, Latency: 20 * ms, Reason: equalParts}},
	{"50/50, data loader 60+40 ms and training", slow, Limits{RMS10: 14, Busy: 94, Latency: 20 * ms, Reason: fewSamples}},
	{"50/50, one on and off every 1.2 s", series, Limits{RMS10: 25, Busy: 96, Latency: 20 * ms, Reason: equalParts}},
	{"50/50, one on and off every 1.2 s", lateSeries, Limits{RMS10: 24.5, Busy: 95, Latency: 20 * ms, Reason: equalParts}},
	{"50/50, one on and off every 1.2 s", noSeries, Limits{RMS10: 21.5, Busy: 61, Latency: 20 * ms, Reason: equalParts}},
	{"50/50, one on and off every 1.2 s", slow, Limits{RMS10: 24, Busy: 92, Latency: 20 * ms, Reason: fewSamples}},
	{
		"low latency: 20/40/40, requests at random and two trainings",
		slow,
		Limits{RMS10: 5.5, Busy: 96.5, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"low latency: 40/30/30, 30 requests/s of 10 ms and two trainings",
		slow,
		Limits{RMS10: 4.5, Busy: 97, Latency: 20 * ms, Reason: fewSamples},
	},
	{"low latency: 20/80, a flood and training", slow, Limits{RMS10: 4.5, Busy: 97, Reason: fewSamples}},
}
