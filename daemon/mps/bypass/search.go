package bypass

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// A process that unsets CUDA_MPS_PIPE_DIRECTORY, or starts an MPS server of its own, has a context without the limits of the GPU's
// MPS. The driver's lists cannot tell: they may have a client in the list of MPS, in that of compute processes, in both, or have only
// its server, and that of another MPS too. So every process of a lease in these lists is compared with the clients that the control
// daemon has.

// Search is the search for them. Set the fields before the first use.
type Search struct {
	*report.Reporter
	State       *state.State
	Driver      gpu.Driver
	Observer    *observe.Observer
	Table       *lease.Table
	Samples     *observe.Samples
	Attribution *attribution.Attribution
	// SampleInterval returns the time between two samples.
	SampleInterval func() time.Duration
	// Changed is called when the number of clients of a GPU has changed: the lease table must know it when it returns.
	Changed func()
	Clients clientReader
	Stopper memberStopper

	mu locks.Mutex[locks.Leaf] // guards on
	on map[mps.Device]*searched
}

// served is a GPU in MPS mode, or one MIG instance that is shared through MPS.
type served struct {
	gpu      *observe.GPU
	device   mps.Device
	instance *gpu.Instance // nil: the whole GPU
}

// servedOf are the parts of a GPU on which MPS is to run.
func servedOf(want *state.Desired, g *observe.GPU) []served {
	id := g.Identity.UUID
	switch {
	case g.Err != nil, !want.Enforcing():
		return nil
	case want.WantsMPS(id):
		return []served{{gpu: g, device: mps.Whole(id)}}
	}
	var out []served
	for i := range g.Instances {
		if in := &g.Instances[i]; want.SharesInstances(id, g.Profiles, g.Profiles.GIName(in.ProfileID)) {
			out = append(out, served{g, mps.Device{GPU: id, Instance: in.Placement}, in})
		}
	}
	return out
}

// has reports whether a process is listed here. Where the driver does not report the instance of a process, it may be.
func (s *served) has(p *gpu.Process) bool {
	return s.instance == nil || p.GI == nil || *p.GI == s.instance.ID
}

// of are those of the processes of the GPU that are listed here.
func (s *served) of(all []gpu.Process) []gpu.Process {
	if s.instance == nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(p gpu.Process) bool { return !s.has(&p) })
}

// leases reports whether a process of a lease is to be a client here. A process whose instance is not reported is in that of its lease.
func (s *served) leases(p *gpu.Process, at *gpu.Placement) bool {
	return s.has(p) && (s.instance == nil || p.GI != nil || at != nil && *at == s.instance.Placement)
}

// clientReader reads the clients of the MPS server of a GPU or of an instance.
type clientReader interface {
	Clients(ctx context.Context, on mps.Device) ([]int, error)
}

// memberStopper stops some processes of a lease.
type memberStopper interface {
	Members(ctx context.Context, l *lease.Lease, processes []cgroup.Process, notify func(context.Context)) error
}

const (
	// readingsUntilFound is how often in a row a process must be missing from the clients: one reading may meet a client that joins.
	readingsUntilFound = 2
	// verifiedFor is how long what is known of the processes of an unchanged list is not looked at again: a client may execute another
	// program, which is no client, with the same pid.
	verifiedFor = 30 * time.Second
	// clientsFor is how long the clients are not read again while the processes execute the same programs: each reading is lines in the
	// log of the control daemon. A process may hide that it executes another one.
	clientsFor = 10 * time.Minute
	// retryClients is the time from a reading of the clients that failed to the next.
	retryClients = time.Second
	// checkTimeout bounds the readings of one GPU or instance.
	checkTimeout = 5 * time.Second
)

// Run starts a check wherever one is due, until ctx ends, and returns when all have ended. It looks twice in each sample interval, so
// that a process is reported within two; where no MPS is to run, once.
func (b *Search) Run(ctx context.Context) {
	var tasks loop.Group
	defer tasks.Wait()
	for loop.Every(ctx, b.pause()) {
		want, node := b.State.Desired(), b.Samples.Overlay(b.Observer.Last())
		for _, s := range b.due(want, node, b.Now()) {
			tasks.Go(func() { b.check(ctx, want, s, &tasks) })
		}
		b.Conditions.Replace("mps-bypass", b.conditions(want))
	}
}

// pause is the time between two passes.
func (b *Search) pause() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.on) == 0 {
		return b.SampleInterval()
	}
	return b.SampleInterval() / 2
}

// due returns what is to be checked, and forgets where MPS is not to run any more.
func (b *Search) due(want *state.Desired, node *observe.Node, now time.Time) []*served {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.on
	b.on = map[mps.Device]*searched{}
	var out []*served
	for i := range node.GPUs {
		g := &node.GPUs[i]
		for _, s := range servedOf(want, g) {
			on := was[s.device]
			if on == nil {
				on = &searched{stopping: map[cgroup.Process]bool{}}
			}
			b.on[s.device] = on
			on.name = planner.DeviceName(g, s.device)
			if on.begin(s.of(g.Processes), want.Bypass(g.Identity.UUID), now) {
				out = append(out, &s)
			}
		}
	}
	return out
}

// check compares the processes of leases on a GPU or in an instance with the clients of its MPS, reports those that are new, and
// stops them if the spec says so.
func (b *Search) check(ctx context.Context, want *state.Desired, s *served, tasks *loop.Group) {
	read, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	contexts, not, err := b.readContexts(read, s)
	if ctx.Err() != nil {
		return
	}
	id, name := s.device.GPU, planner.DeviceName(s.gpu, s.device)
	found, stops := b.end(s.device, contexts, not, err, want.Bypass(id), b.Now())
	for i := range found {
		c := &found[i]
		b.Events.Publish(
			api.Event{Kind: "mps.bypass", GPU: string(id), Tenant: c.tenant, Lease: c.lease, Message: c.text(name, want.Bypass(id))},
		)
	}
	for _, processes := range stops {
		tasks.Go(func() { b.stop(ctx, s, name, processes) })
	}
}

// readContexts lists the processes of leases on a GPU or in an instance, and then those of them that are no clients of its MPS.
func (b *Search) readContexts(ctx context.Context, s *served) (contexts []leasedContext, not []int, err error) {
	g := s.gpu
	processes, err := b.Driver.Processes(ctx, g.Identity.UUID)
	if err != nil {
		return nil, nil, err
	}
	var pids []int
	leaseOf := b.Attribution.LeaseLookup(len(processes))
	for i := range processes {
		p := &processes[i]
		id, leased := leaseOf(p.PID)
		if !leased || p.Kind == gpu.GraphicsProcess || slices.Contains(pids, p.PID) {
			continue
		}
		st, err := procfs.Read(p.PID)
		if err != nil || st.Dead() || attribution.ServesMPS(g.ControlDaemons(), st) {
			continue
		}
		l, known := b.Table.Get(id)
		if !known || !s.leases(p, l.Place.Instance) {
			continue
		}
		c := leasedContext{process: cgroup.Process{PID: p.PID, Start: st.Start}, name: st.Name, lease: id, tenant: l.Terms.Tenant}
		c.image, err = procfs.ReadImage(p.PID) // Before the clients.
		c.noImage = err != nil
		if stop.DecideMember(&l, p.PID) != stop.MayStop {
			c.exempt = "it belongs to root or to the system"
		}
		contexts, pids = append(contexts, c), append(pids, p.PID)
	}
	clients, err := b.Clients.Clients(ctx, s.device)
	if err != nil {
		if len(pids) == 0 {
			err = nil // There is nothing to compare.
		}
		return contexts, nil, err
	}
	if s.instance == nil && b.State.SetMPSClientsOn(g.Identity.UUID, b.Attribution.CountClients(clients), g.MPS.MaxClients()) {
		b.Changed()
	}
	return contexts, slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(clients, pid) }), nil
}

// stop stops processes of one lease that are no clients of the MPS of a GPU or of an instance.
func (b *Search) stop(ctx context.Context, s *served, name string, contexts []leasedContext) {
	defer b.stopped(s.device, contexts)
	l, ok := b.Table.Get(contexts[0].lease)
	if !ok {
		return // It has ended, with its processes.
	}
	var processes []cgroup.Process
	for i := range contexts {
		processes = append(processes, contexts[i].process)
	}
	err := b.Stopper.Members(ctx, &l, processes, func(context.Context) {
		for i := range contexts {
			text := fmt.Sprintf("%s is stopped: it uses %s and is no client of its MPS (mps.bypass: stop)", contexts[i].subject(), name)
			b.Events.Publish(
				api.Event{Kind: "mps.bypass.stopped", GPU: string(s.device.GPU), Tenant: l.Terms.Tenant, Lease: l.ID, Message: text},
			)
			b.Audit("gpushared", "bypass", text)
			b.Table.Notice(l.ID, lease.Notice{Text: text})
		}
	})
	if err != nil && ctx.Err() == nil {
		b.Log.Error("cannot stop processes that bypass MPS", "lease", l.ID, "error", err)
	}
}
