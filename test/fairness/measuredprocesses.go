package fairness

// The reasons of leases of several processes.
const (
	ownShare = "the GPU divides its time by processes: next to the others a lease has the part of its own, and by itself no more of the time " +
		"than its share, whether it uses that or not"
	forRequests = "next to eight processes a service has a ninth of the time, so they wait for up to 44 % of it, and requests at random use half " +
		"of that: 40 requests/s leave the training 36 to 58 of 60 %, and the GPU is 75 to 89 % busy; seen in the 14 samples of two seconds"
	hostsBegin = "the hosts of all its processes work at the begin of each slice: that is not charged, and what each has queued then runs for " +
		"0 to 180 ms after the slice, which samples of 139 ms do not distinguish from that: 70 % had 63 to 67"
	firstTrial = "at first it is not known that eight processes have work queued, which runs in the trial of the service: it seems to keep " +
		"the GPU busy, and has slices for a minute or two; 96.4 % busy with samples of 200 ms"
	longQueue = "eight processes have 400 ms of queued work, which runs next to the next slice: 47 and 53 of 50 % with samples of 155 ms"
	seenLate  = "that a lease would use more is seen by its samples, seven a second, of which few name it next to many processes"
)

// lackingProcesses is the same as lacking for leases of several processes.
var lackingProcesses = []lack{
	{
		"55/45, data loader 60+40 ms and training of three processes",
		series,
		Limits{RMS10: 22, Busy: 79, Latency: 20 * ms, Reason: ownShare},
	},
	{
		"55/45, data loader 60+40 ms and training of three processes",
		lateSeries,
		Limits{RMS10: 33.5, Busy: 89, Latency: 20 * ms, Reason: lateAnswers},
	},
	{
		"55/45, data loader 60+40 ms and training of three processes",
		noSeries,
		Limits{RMS10: 35.5, Busy: 93, Latency: 20 * ms, Reason: trials},
	},
	{
		"55/45, data loader 60+40 ms and training of three processes",
		slow,
		Limits{RMS10: 35.5, Busy: 95, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"55/45, data loader 60+40 ms and training of eight processes",
		series,
		Limits{RMS10: 17, Busy: 77, Latency: 20 * ms, Reason: ownShare},
	},
	{
		"55/45, data loader 60+40 ms and training of eight processes",
		lateSeries,
		Limits{RMS10: 28.5, Busy: 80, Latency: 20 * ms, Reason: lateAnswers},
	},
	{
		"55/45, data loader 60+40 ms and training of eight processes",
		noSeries,
		Limits{RMS10: 45, Busy: 91, Latency: 20 * ms, Reason: trials},
	},
	{
		"55/45, data loader 60+40 ms and training of eight processes",
		slow,
		Limits{RMS10: 46.5, Busy: 94, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"20/80, inference and training of eight processes",
		series,
		Limits{RMS10: 5.5, Busy: 97, Latency: 20 * ms, Reason: equalParts},
	},
	{
		"20/80, inference and training of eight processes",
		lateSeries,
		Limits{RMS10: 5, Busy: 98, Latency: 20 * ms, Reason: equalParts},
	},
	{
		"20/80, inference and training of eight processes",
		noSeries,
		Limits{RMS10: 5.5, Busy: 96, Latency: 20 * ms, Reason: equalParts},
	},
	{
		"20/80, inference and training of eight processes",
		slow,
		Limits{RMS10: 6.5, Busy: 93, Latency: 340 * ms, Reason: fewSamples},
	},
	{
		"30/70, inference of three processes and training",
		series,
		Limits{RMS10: 11, Busy: 97, Latency: 40 * ms, Reason: equalParts},
	},
	{
		"30/70, inference of three processes and training",
		lateSeries,
		Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: equalParts},
	},
	{
		"30/70, inference of three processes and training",
		noSeries,
		Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: equalParts},
	},
	{
		"30/70, inference of three processes and training",
		slow,
		Limits{RMS10: 12.5, Busy: 94, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"30/70, inference of eight processes above its share and training",
		series,
		Limits{RMS10: 5.5, Busy: 97, Latency: 20 * ms, Reason: bursts},
	},
	{
		"30/70, inference of eight processes above its share and training",
		lateSeries,
		Limits{RMS10: 4.5, Busy: 97, Latency: 20 * ms, Reason: lateAnswers},
	},
	{
		"30/70, inference of eight processes above its share and training",
		noSeries,
		Limits{RMS10: 5, Busy: 97, Latency: 20 * ms, Reason: trials},
	},
	{
		"30/70, inference of eight processes above its share and training",
		slow,
		Limits{RMS10: 14, Busy: 87, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"20/80, cheat: eight processes that each leave the GPU idle, and training",
		series,
		Limits{RMS10: 4.5, Busy: 97, Latency: 20 * ms, Reason: bursts},
	},
	{
		"20/80, cheat: eight processes that each leave the GPU idle, and training",
		lateSeries,
		Limits{RMS10: 4, Busy: 97, Latency: 20 * ms, Reason: lateAnswers},
	},
	{
		"20/80, cheat: eight processes that each leave the GPU idle, and training",
		noSeries,
		Limits{RMS10: 3.5, Busy: 97, Latency: 20 * ms, Reason: trials},
	},
	{
		"20/80, cheat: eight processes that each leave the GPU idle, and training",
		slow,
		Limits{RMS10: 8.5, Busy: 87, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"30/70, data loader of three processes and training",
		series,
		Limits{RMS10: 6, Busy: 92.5, Reason: hostsBegin},
	},
	{
		"30/70, data loader of three processes and training",
		lateSeries,
		Limits{RMS10: 5.5, Busy: 93, Reason: hostsBegin},
	},
	{
		"30/70, data loader of three processes and training",
		noSeries,
		Limits{RMS10: 5, Busy: 95, Reason: hostsBegin},
	},
	{
		"30/70, data loader of three processes and training",
		slow,
		Limits{RMS10: 6, Busy: 92, Reason: fewSamples},
	},
	{
		"20/30/50, cheat: eight processes, inference and training",
		series,
		Limits{RMS10: 3, Busy: 95.5, Latency: 20 * ms, Reason: firstTrial},
	},
	{
		"20/30/50, cheat: eight processes, inference and training",
		noSeries,
		Limits{RMS10: 5, Busy: 94, Latency: 20 * ms, Reason: trials},
	},
	{
		"20/30/50, cheat: eight processes, inference and training",
		slow,
		Limits{RMS10: 12, Busy: 94, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"low latency: 50/50, a flood and training of three processes",
		noSeries,
		Limits{RMS10: 5.5, Busy: 94, Latency: 20 * ms, Reason: seenLate},
	},
	{
		"low latency: 50/50, a flood and training of three processes",
		slow,
		Limits{RMS10: 14, Busy: 92, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"low latency: 50/50, a flood and training of eight processes",
		noSeries,
		Limits{RMS10: 8, Busy: 90, Latency: 20 * ms, Reason: seenLate},
	},
	{
		"low latency: 50/50, a flood and training of eight processes",
		slow,
		Limits{RMS10: 34.5, Busy: 94, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"low latency: 50/50, 40 requests/s of 10 ms and training of three processes",
		series,
		Limits{RMS10: 11, Busy: 85, Latency: 20 * ms, Reason: ownShare},
	},
	{
		"low latency: 50/50, 40 requests/s of 10 ms and training of three processes",
		lateSeries,
		Limits{RMS10: 14.5, Busy: 87, Latency: 20 * ms, Reason: ownShare},
	},
	{
		"low latency: 50/50, 40 requests/s of 10 ms and training of three processes",
		noSeries,
		Limits{RMS10: 17, Busy: 77, Latency: 20 * ms, Reason: ownShare},
	},
	{
		"low latency: 50/50, 40 requests/s of 10 ms and training of three processes",
		slow,
		Limits{RMS10: 11.5, Busy: 88, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"low latency: 50/50, 40 requests/s of 10 ms and training of eight processes",
		series,
		Limits{RMS10: 21, Busy: 74, Latency: 20 * ms, Reason: forRequests},
	},
	{
		"low latency: 50/50, 40 requests/s of 10 ms and training of eight processes",
		lateSeries,
		Limits{RMS10: 25, Busy: 75, Latency: 20 * ms, Reason: forRequests},
	},
	{
		"low latency: 50/50, 40 requests/s of 10 ms and training of eight processes",
		noSeries,
		Limits{RMS10: 21.5, Busy: 81, Latency: 20 * ms, Reason: ownShare},
	},
	{
		"low latency: 50/50, 40 requests/s of 10 ms and training of eight processes",
		slow,
		Limits{RMS10: 21.5, Busy: 90, Latency: 20 * ms, Reason: fewSamples},
	},
	{
		"low latency: 50/50, inference of three processes and training",
		series,
		Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: equalParts},
	},
	{
		"low latency: 50/50, inference of three processes and training",
		lateSeries,
		Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: equalParts},
	},
	{
		"low latency: 50/50, inference of three processes and training",
		noSeries,
		Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: equalParts},
	},
	{
		"low latency: 50/50, inference of three processes and training",
		slow,
		Limits{RMS10: 8.5, Busy: 97, Latency: 20 * ms, Reason: fewSamples},
	},
}
