package fault

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// Faults follows the faults of the control daemons. Set the fields before the first use.
type Faults struct {
	*report.Reporter
	State    *state.State
	Observed func() *observe.Node
	Lease    func(id string) (lease.Lease, bool)
	LeaseOf  func(pid int) (id string, ok bool)
	Leases   notes
	Stopper  memberStopper
	Wake     func() // observes the node again

	mu locks.Mutex[locks.MPSFaults] // guards what follows
	on map[mps.Device]*device
}

// notes keeps a line for the user of a lease, also of one that has ended.
type notes interface {
	Note(id string, n lease.Notice)
}

// memberStopper stops some processes of a lease.
type memberStopper interface {
	Members(ctx context.Context, l *lease.Lease, processes []cgroup.Process, notify func(context.Context)) error
}

// member is the lease of a client.
type member struct {
	lease, tenant string
	seen          time.Time
}

// rememberedFor is how long the lease of a client is known after its end: a fault is seen within three minutes.
const rememberedFor = 5 * time.Minute

// device is what is known of one control daemon.
type device struct {
	members  map[int]member // of the clients, by pid: they have ended when a fault is seen
	since    time.Time      // of the last fault that was reported
	culprit  int            // of the same, as it was reported
	xid      uint64         // of the same, as it was reported: the driver may say it later than the log
	stopping map[int]bool   // processes that are or were stopped after this fault, by pid
	caused   map[string][]time.Time
}

// Converge reports the faults that are new, and the tenants that are held back.
func (f *Faults) Converge(node *observe.Node) {
	f.follow(node)
	f.updateConditions(node)
}

func (f *Faults) follow(node *observe.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.on
	f.on = map[mps.Device]*device{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		for _, m := range g.ControlDaemons() {
			d := was[m.Device()]
			if d == nil {
				d = &device{members: map[int]member{}, caused: map[string][]time.Time{}}
			}
			f.on[m.Device()] = d
			if last := m.Fault; last != nil && (!last.Since.Equal(d.since) || last.Culprit != d.culprit || last.XID != d.xid) {
				f.reportLocked(g, m.Device(), d, last)
			}
			f.rememberLocked(d, slices.Concat(m.Clients, listed(g, m.Device())))
		}
	}
}

// listed are the clients of a control daemon in the driver's list, which is newer than what the control daemon was asked for.
func listed(g *observe.GPU, on mps.Device) (pids []int) {
	in := g.InstanceAt(on.Instance)
	for i := range g.Processes {
		p := &g.Processes[i]
		if p.Kind == gpu.MPSProcess && (!on.IsInstance() || in != nil && p.GI != nil && *p.GI == in.ID) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// rememberLocked keeps the leases of clients.
func (f *Faults) rememberLocked(d *device, clients []int) {
	now := f.Now()
	for _, pid := range clients {
		id, ok := f.LeaseOf(pid)
		if !ok {
			continue
		}
		m := member{lease: id, seen: now}
		if l, ok := f.Lease(id); ok {
			m.tenant = l.Terms.Tenant
		}
		d.members[pid] = m
	}
	maps.DeleteFunc(d.members, func(_ int, m member) bool { return now.Sub(m.seen) > rememberedFor })
}

// reportLocked publishes a fault, and notes it for the users of the leases whose processes it has ended.
func (f *Faults) reportLocked(g *observe.GPU, on mps.Device, d *device, last *mps.Fault) {
	same := last.Since.Equal(d.since)
	counted := same && last.Culprit == d.culprit
	if !same {
		d.stopping = map[int]bool{}
	}
	d.since, d.culprit, d.xid = last.Since, last.Culprit, last.XID
	where, by := planner.DeviceName(g, on), d.members[last.Culprit]
	if l, ok := f.Lease(by.lease); ok {
		by.tenant = l.Terms.Tenant // It may have got another name since the process was seen.
	}
	f.Events.Publish(api.Event{
		Kind:    "mps.fault",
		GPU:     string(on.GPU),
		Tenant:  by.tenant,
		Lease:   by.lease,
		Message: where + ": " + describe(d.members, last),
	})
	noted := map[string]bool{}
	note := func(pid int, text string) {
		if id := d.members[pid].lease; id != "" && !noted[id] {
			noted[id] = true
			f.Leases.Note(id, lease.Notice{Text: fmt.Sprintf("pid %d %s", pid, text)})
		}
	}
	note(last.Culprit, "had a fatal fault under MPS of "+where+xid(last))
	for _, pid := range last.Victims {
		note(pid, "lost its GPU context: a client of the MPS of "+where+" had a fatal fault"+xid(last))
	}
	if by.tenant != "" && !counted {
		f.countLocked(on, d, by.tenant, last.Since)
	}
}

func xid(last *mps.Fault) string {
	if last.XID == 0 {
		return ""
	}
	return fmt.Sprintf(" (XID %d)", last.XID)
}

// describe names the processes of a fault with their leases.
func describe(members map[int]member, last *mps.Fault) string {
	name := func(pid int) string {
		if id := members[pid].lease; id != "" {
			return fmt.Sprintf("pid %d (lease %s)", pid, id)
		}
		return fmt.Sprintf("pid %d", pid)
	}
	text := "a client of MPS had a fatal fault" + xid(last) + ", and the log does not name it"
	if last.Culprit != 0 {
		text = name(last.Culprit) + " had a fatal fault under MPS" + xid(last)
	}
	if len(last.Victims) == 0 {
		return text
	}
	var victims []string
	for _, pid := range last.Victims {
		victims = append(victims, name(pid))
	}
	return text + "; these lost their context: " + strings.Join(victims, ", ")
}
