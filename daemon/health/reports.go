package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/kernel/kernellog"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// member is the lease of a process.
type member struct {
	lease string
	seen  time.Time
}

// rememberedFor is how long the lease of a process is known after it was last seen on a GPU: an XID ends it before it is read.
const rememberedFor = 5 * time.Minute

// noteInterval is the least time between two notices to a lease about the same XID.
const noteInterval = time.Minute

// note is a notice to a lease.
type note struct {
	lease string
	xid   uint64
}

// XID takes an XID of the driver's events.
func (k *Health) XID(e gpu.Event) {
	k.report(rules.Report{GPU: e.GPU, XID: e.XID, At: k.Now(), GI: e.GI, CI: e.CI})
}

// line takes an XID of the kernel's log.
func (k *Health) line(r kernellog.Record) {
	if r.Lost {
		k.Log.Warn("lines of the kernel's log were overwritten before they were read: an XID may be missing")
	}
	node := k.Observed()
	for i := range node.GPUs {
		if g := &node.GPUs[i]; strings.HasPrefix(g.Identity.PCI, r.PCI+".") {
			k.report(
				rules.Report{GPU: g.Identity.UUID, XID: r.XID, At: k.Now(), FromLog: true, PID: r.PID, Name: r.Name, GI: r.GI, CI: r.CI},
			)
			return
		}
	}
}

// report closes the GPU if the XID does that, at once and from whichever report is first. What is published waits for the pair.
func (k *Health) report(r rules.Report) {
	policy, m := policyOf(k.State.Desired(), r.GPU), k.momentOf(k.Observed())
	k.apply(transition{r.GPU, func(was rules.Record) rules.Record { return was.AfterXID(r.XID, policy, m) }})
	if x := rules.Of(r.XID); x.Class == rules.Lost {
		k.lost(r.GPU, r.At, x.String())
	}
	k.mu.Lock()
	complete := k.pairs.Add(r)
	k.mu.Unlock()
	k.publish(complete)
	k.Arrived.Set()
	if c := rules.Of(r.XID).Class; c != rules.Program && c != rules.Notice {
		k.Due.Set() // The readings say more.
	}
}

// reportLoop publishes the XIDs that have no line in the log, until ctx ends.
func (k *Health) reportLoop(ctx context.Context) {
	for {
		k.mu.Lock()
		due := k.pairs.Due(k.Now())
		wait, waits := k.pairs.Next(k.Now())
		k.mu.Unlock()
		k.publish(due)
		if !waits {
			wait = time.Hour
		}
		if _, ok := k.Arrived.Sleep(ctx, wait); !ok {
			return
		}
	}
}

// logLoop follows the kernel's log until ctx ends.
func (k *Health) logLoop(ctx context.Context) {
	for {
		err := errors.New("cannot read the kernel log: this host has none")
		if k.FollowLog != nil {
			k.setLog(nil)
			err = k.FollowLog(ctx, k.line)
		}
		if ctx.Err() != nil {
			return
		}
		if k.setLog(err) {
			k.Log.Warn("programs that cause XIDs are not known", "error", err)
		}
		if !loop.Pause(ctx, logRetry) {
			return
		}
	}
}

// LogError is why the kernel's log cannot be read; nil if it can. Without it a program that causes an XID is known in a MIG instance
// only.
func (k *Health) LogError() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.pairs.WithoutLog {
		return nil
	}
	return k.logErr
}

// setLog records whether the kernel's log can be read, and reports whether that is another failure than before.
func (k *Health) setLog(err error) (other bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pairs.WithoutLog = err != nil
	if err == nil {
		return false
	}
	other = k.logErr == nil || k.logErr.Error() != err.Error()
	k.logErr = err
	return other
}

// publish counts XIDs, publishes them, and notes them for the lease that caused them.
func (k *Health) publish(reports []rules.Report) {
	for i := range reports {
		r := &reports[i]
		x := rules.Of(r.XID)
		id := k.causedBy(r)
		e := api.Event{Kind: "gpu.xid", GPU: string(r.GPU), Lease: id, Message: x.String()}
		if l, ok := k.Lease(id); ok {
			e.Tenant, e.User = l.Terms.Tenant, l.User
		}
		if r.PID != 0 {
			e.Message += ": " + process(r)
		}
		if !r.Counted {
			k.XIDs.Add(r.GPU, r.XID, r.At)
		}
		if !r.Counted || id != "" {
			k.Events.Publish(e)
		}
		k.concern(r, x, id)
	}
}

// process is "pid 7 (python)".
func process(r *rules.Report) string {
	if r.Name == "" {
		return fmt.Sprintf("pid %d", r.PID)
	}
	return fmt.Sprintf("pid %d (%s)", r.PID, r.Name)
}

// reportedByMPS reports whether the fault is one of MPS, whose culprit and victims are reported elsewhere.
func (k *Health) reportedByMPS(r *rules.Report) bool {
	return k.State.Desired().HasMPS(r.GPU, r.GI != nil)
}

// note keeps for the users of a lease what happened to their program. A program that fails again and again is noted once in a minute.
func (k *Health) note(id string, r *rules.Report, x rules.XID) {
	if k.noticed(note{id, r.XID}, r.At) {
		return
	}
	who := "a program"
	if r.PID != 0 {
		who = process(r)
	}
	text := fmt.Sprintf("%s caused %s on %s; the GPU is in order", who, x, k.nameOf(r.GPU))
	if x.Class == rules.Contained {
		text = fmt.Sprintf("%s was ended by %s on %s: it may be started again", who, x, k.nameOf(r.GPU))
	}
	k.Leases.Note(id, lease.Notice{Text: text})
}

// noticed reports whether a lease got a notice about an XID within noteInterval; otherwise it gets one now.
func (k *Health) noticed(key note, at time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.noted, func(_ note, was time.Time) bool { return at.Sub(was) >= noteInterval })
	if _, noted := k.noted[key]; noted {
		return true
	}
	if k.noted == nil {
		k.noted = map[note]time.Time{}
	}
	k.noted[key] = at
	return false
}

// causedBy is the lease whose process caused an XID; empty if it is not known.
func (k *Health) causedBy(r *rules.Report) string {
	if r.PID != 0 {
		if id, ok := k.LeaseLookup(1)(r.PID); ok {
			return id
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.members[r.PID].lease
	}
	if r.GI == nil {
		return ""
	}
	if in := k.leasesAt(r); len(in) == 1 { // Several share the instance, or had it one after the other.
		return in[0]
	}
	return ""
}

// remember keeps the leases of the processes on the GPUs.
func (k *Health) remember(node *observe.Node) {
	now, listed := k.Now(), 0
	for i := range node.GPUs {
		listed += len(node.GPUs[i].Processes)
	}
	leaseOf := k.LeaseLookup(listed)
	k.mu.Lock()
	known := maps.Clone(k.members)
	k.mu.Unlock()
	if known == nil {
		known = map[int]member{}
	}
	for i := range node.GPUs {
		for j := range node.GPUs[i].Processes {
			pid := node.GPUs[i].Processes[j].PID
			if id, ok := leaseOf(pid); ok {
				known[pid] = member{lease: id, seen: now}
			}
		}
	}
	maps.DeleteFunc(known, func(_ int, m member) bool { return now.Sub(m.seen) > rememberedFor })
	k.mu.Lock()
	defer k.mu.Unlock()
	k.members = known
}
