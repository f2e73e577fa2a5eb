package status

// How exact a mechanism is, by 'make bench'. docs/quota.md has the tables that these sentences summarise.
const (
	// timeAccuracy is for the scheduler with the driver's utilisation series, over all samplers of the virtual node.
	timeAccuracy = "to 1 point over a minute and 2 points over 10 s for leases that keep the GPU busy (virtual GPU, see docs/quota.md)"
)
