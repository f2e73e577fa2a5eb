package bypass

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// searched is what is known of the processes of leases on one GPU in MPS mode, or in one MIG instance that is shared through MPS.
type searched struct {
	name     string // in messages
	checking bool
	read     time.Time     // when the clients were read last
	listed   []gpu.Process // the list at the last check
	bypass   string        // of the spec at the last check
	next     time.Time     // of the check of an unchanged list
	contexts []leasedContext
	failed   error // of the last check
	failures int   // checks in a row that failed
	stopping map[cgroup.Process]bool
}

// leasedContext is a process of a lease in one of the driver's lists.
type leasedContext struct {
	process       cgroup.Process
	name          string
	lease, tenant string
	exempt        string // why it is never stopped; empty: it may be stopped
	missing       int    // readings in a row in which it was no client
	image         procfs.Image
	noImage       bool // it could not be read
}

// subject names the process and its lease.
func (c *leasedContext) subject() string {
	return fmt.Sprintf("pid %d (%s) of lease %s of %s", c.process.PID, c.name, c.lease, c.tenant)
}

// text is the condition of a process that bypasses MPS.
func (c *leasedContext) text(name, bypass string) string {
	decision := "it is only reported (mps.bypass: report)"
	switch {
	case bypass == api.BypassStop && c.exempt != "":
		decision = "it is not stopped: " + c.exempt
	case bypass == api.BypassStop:
		decision = "it is stopped (mps.bypass: stop)"
	case bypass == api.BypassDeny:
		decision = "new ones get no context (mps.bypass: deny)"
	}
	return fmt.Sprintf("%s uses %s and is no client of its MPS: no limit of MPS applies to it; %s", c.subject(), name, decision)
}

// begin reports whether a check is due, and marks it as begun.
func (on *searched) begin(list []gpu.Process, bypass string, now time.Time) bool {
	same := slices.EqualFunc(on.listed, list, func(a, b gpu.Process) bool { return a.PID == b.PID && a.Kind == b.Kind })
	switch {
	case on.checking:
		return false
	case len(list) == 0: // There is nothing to check.
		on.listed, on.contexts, on.failed, on.failures = nil, nil, nil, 0
		return false
	case same && on.bypass == bypass && (now.Before(on.next) || len(on.contexts) == 0 && on.failed == nil):
		return false
	case same && on.bypass == bypass && on.verified(now):
		on.next = now.Add(verifiedFor)
		return false
	}
	on.checking, on.listed, on.bypass = true, list, bypass
	return true
}

// verified reports whether all processes were clients not long ago, and execute the same programs as then.
func (on *searched) verified(now time.Time) bool {
	if on.failed != nil || now.Sub(on.read) >= clientsFor {
		return false
	}
	return !slices.ContainsFunc(on.contexts, func(c leasedContext) bool {
		image, err := procfs.ReadImage(c.process.PID)
		return c.missing > 0 || c.noImage || err != nil || image != c.image
	})
}

// end records a check: the processes of leases, and which of them are no clients. It returns those that are found to bypass MPS, and
// those to stop, for each lease.
func (b *Search) end(
	d mps.Device, contexts []leasedContext, not []int, err error, bypass string, now time.Time,
) (found []leasedContext, stops map[string][]leasedContext) {
	b.mu.Lock()
	defer b.mu.Unlock()
	on := b.on[d]
	if on == nil {
		return nil, nil // It is not in MPS mode any more.
	}
	on.checking, on.failed = false, err
	if err != nil {
		on.failures++
		on.next = now.Add(retryClients)
		return nil, nil
	}
	before := on.contexts
	on.failures, on.contexts, on.read, on.next = 0, contexts, now, now.Add(verifiedFor)
	stops = map[string][]leasedContext{}
	for i := range contexts {
		c := &contexts[i]
		if !slices.Contains(not, c.process.PID) {
			continue
		}
		if k := slices.IndexFunc(before, func(o leasedContext) bool { return o.process == c.process }); k >= 0 {
			c.missing = before[k].missing
		}
		if c.missing++; c.missing < readingsUntilFound {
			on.next = now
			continue
		}
		if c.missing == readingsUntilFound {
			found = append(found, *c)
		}
		if bypass == api.BypassStop && c.exempt == "" && !on.stopping[c.process] {
			on.stopping[c.process] = true
			stops[c.lease] = append(stops[c.lease], *c)
		}
		if bypass == api.BypassStop {
			on.next = now.Add(retryClients) // Until it has ended.
		}
	}
	return found, stops
}

// stopped records that a stop has ended. What still runs is stopped again.
func (b *Search) stopped(d mps.Device, contexts []leasedContext) {
	b.mu.Lock()
	defer b.mu.Unlock()
	on := b.on[d]
	for i := range contexts {
		if on != nil {
			delete(on.stopping, contexts[i].process)
		}
	}
}

// conditions are the processes that bypass MPS, and where that cannot be read.
func (b *Search) conditions(want *state.Desired) map[string]api.Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]api.Condition{}
	for d, on := range b.on {
		for i := range on.contexts {
			c := &on.contexts[i]
			if c.missing < readingsUntilFound || !procfs.Alive(c.process.PID, c.process.Start) {
				continue
			}
			out[fmt.Sprint(d, c.process)] = api.Condition{
				GPU: string(d.GPU), Tenant: c.tenant, Message: c.text(on.name, want.Bypass(d.GPU)),
				Hint: "a program joins MPS with the environment of its lease: in the lease 'gpushare env' prints it",
			}
		}
		if on.failures >= readingsUntilFound {
			out[fmt.Sprint(d)] = api.Condition{
				GPU: string(d.GPU), Message: fmt.Sprintf("it is not known which processes on %s bypass its MPS: %v", on.name, on.failed),
				Hint: "'gpushare mps list' shows the state of MPS",
			}
		}
	}
	return out
}
