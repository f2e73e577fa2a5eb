package quota

import "time"

// MemoryControl decides about the GPU memory of one GPU: when it is read, when its processes are listed, and what happens to
// leases above their limits. The zero value works; it is not safe for concurrent use. Times are of one clock that never goes
// back.
type MemoryControl struct {
	Escalation Escalation
	Sampling   Sampling

	accounts []MemoryAccount // of the last measurement
}

// Read takes a reading of the GPU's memory and reports whether its processes are to be listed: because of what moved, because
// a stage of the escalation ends, or because the GPU has less free memory than its reserve.
func (c *MemoryControl) Read(now time.Duration, used uint64, device DeviceMemory, longest time.Duration) (list bool) {
	at, ok := c.Escalation.Due(c.accounts)
	return c.Sampling.Read(now, used, c.headroom(device), longest) || ok && now >= at || device.short() && !c.Escalation.pressure
}

// Listed takes a list of the processes, with the GPU's used memory of the same reading, and returns what to do.
func (c *MemoryControl) Listed(now time.Duration, used uint64, device DeviceMemory, accounts []MemoryAccount) []MemoryAction {
	c.Sampling.Listed(now, used)
	c.accounts = accounts
	return c.Escalation.Evaluate(now, device, accounts)
}

// Failed takes accounts without uses after a reading that failed, and returns what to do.
func (c *MemoryControl) Failed(now time.Duration, accounts []MemoryAccount) []MemoryAction {
	c.accounts = accounts
	return c.Escalation.Evaluate(now, DeviceMemory{}, accounts)
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

// Stage is the stage of one lease of an account; empty: none.
func (c *MemoryControl) Stage(account, lease string) string {
	for i := range c.accounts {
		if c.accounts[i].ID == account {
			return c.Escalation.Stage(&c.accounts[i], lease)
		}
	}
	return ""
}

func (c *MemoryControl) headroom(device DeviceMemory) Headroom {
	return c.Escalation.Headroom(device, c.accounts, c.Sampling.Grown())
}
