package quota

import "time"

// Read takes a reading of the GPU's memory and reports whether its processes are to be listed: because of what moved, because
// a stage of the escalation ends, or because the GPU has less free memory than its reserve.
func (c *MemoryControl) Read(now time.Duration, used uint64, device DeviceMemory, longest time.Duration) (list bool) {
	at, ok := c.Escalation.Due(c.accounts)
	return c.Sampling.Read(now, used, c.headroom(device), longest) || ok && now >= at || device.short() && !c.Escalation.pressure
}

// Next is the time until the next reading: at most longest, unless the driver's time exceeds its budget.
func (c *MemoryControl) Next(now time.Duration, device DeviceMemory, longest time.Duration) time.Duration {
	next := c.Sampling.Next(now, c.headroom(device), longest)
	if at, ok := c.Escalation.Due(c.accounts); ok {
		next = min(next, max(at-now, time.Millisecond))
	}
	return next
}

// Near reports whether little headroom is left: a limit could be reached before the next reading at the longest interval.
func (c *MemoryControl) Near(device DeviceMemory, longest time.Duration) bool {
	return c.Sampling.near(c.headroom(device), longest)
}

func (c *MemoryControl) headroom(device DeviceMemory) Headroom {
	return c.Escalation.Headroom(device, c.accounts, c.Sampling.Grown())
}
