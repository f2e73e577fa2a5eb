package status

// How exact a mechanism is. The sentences summarise the tables of docs/robustness.md and docs/quota.md, which 'make bench' prints.
const (
	// timeAccuracy is of the scheduler with the driver's series of samples, in virtual time, without host-bound programs.
	timeAccuracy = "to 1 point over 10 s (RMS) with 50 ms of queued kernels, to 3 points with 400 ms, on virtual GPUs; no better than side by side for programs that wait for the host (docs/robustness.md)"
	// reactiveAccuracy is of the escalation: 1000 runs in virtual time.
	reactiveAccuracy = "after it was exceeded: at 20 GiB/s half of the offenders had 3.6 GiB more than their grant at most, the worst 23.5 GiB, on virtual GPUs (docs/quota.md)"
)
