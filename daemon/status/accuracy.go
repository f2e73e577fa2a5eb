package status

// How exact a mechanism is. The sentences summarise the tables of docs/maintainers/robustness.md and docs/quota.md, which 'make bench'
// prints.
const (
	// reactiveAccuracy is of the escalation: 1000 runs in virtual time.
	reactiveAccuracy = "after it was exceeded: at 20 GiB/s half of the offenders had 3.6 GiB more than their grant at most, the worst 23.5 GiB, on virtual GPUs (docs/quota.md)"
)
