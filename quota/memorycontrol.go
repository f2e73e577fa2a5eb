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

// Stage is the stage of one lease of an account; empty: none.
func (c *MemoryControl) Stage(account, lease string) string {
	for i := range c.accounts {
		if c.accounts[i].ID == account {
			return c.Escalation.Stage(&c.accounts[i], lease)
		}
	}
	return ""
}
