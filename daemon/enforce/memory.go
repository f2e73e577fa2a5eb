package enforce

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// defaultGrace is the default of overuse.grace.
const defaultGrace = 10 * time.Second

// closeInterval is the sample interval while a grant is close to its limit.
const closeInterval = 250 * time.Millisecond

// Run samples and schedules GPU time until ctx ends. It returns when its loops have ended and no lease is frozen.
func (en *Enforcer) Run(ctx context.Context) {
	en.tasks.Begin(ctx)
	defer en.tasks.Wait()
	en.sampleLoop(ctx)
}

// sampleLoop samples the GPUs that have leases: memory, processes and utilization. Without leases it does not call the
// driver.
func (en *Enforcer) sampleLoop(ctx context.Context) {
	escalations := map[gpu.UUID]*quota.Escalation{}
	began := time.Now()
	timer := time.NewTimer(en.SampleInterval())
	defer timer.Stop()
	defer func() { en.stopAttempts.keep(nil) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-en.Wake.C():
		}
		every := en.SampleInterval()
		if en.sampleOnce(ctx, time.Since(began), escalations) {
			every = min(every, closeInterval)
		}
		timer.Reset(every)
	}
}

// sampleOnce takes one sample of every GPU with leases, and reports whether a grant is close to its limit.
func (en *Enforcer) sampleOnce(ctx context.Context, now time.Duration, escalations map[gpu.UUID]*quota.Escalation) (closeToLimit bool) {
	byGPU := map[gpu.UUID][]lease.Lease{}
	var ids []string
	for _, l := range en.Table.Live() {
		ids = append(ids, l.ID)
		for _, id := range l.Place.GPUs {
			byGPU[id] = append(byGPU[id], l)
		}
	}
	en.Samples.Retain(ids, func(id gpu.UUID) bool { return byGPU[id] != nil })
	en.stopAttempts.keep(ids)
	used := map[string]*leaseUse{}
	for id, leases := range byGPU {
		en.sampleGPU(ctx, id, leases, used)
	}
	for id, leases := range byGPU {
		if escalations[id] == nil {
			escalations[id] = &quota.Escalation{}
		}
		closeToLimit = en.escalate(ctx, now, id, escalations[id], leases, used) || closeToLimit
		en.slice(ctx, id, leases, used)
	}
	for id := range escalations {
		if byGPU[id] == nil {
			delete(escalations, id)
		}
	}
	en.Shares.prune(en, byGPU)
	for id, u := range used {
		en.Samples.PutLease(id, u.sample())
	}
	if len(byGPU) > 0 {
		en.Invalidate()
	}
	return closeToLimit
}

// leaseUse is what the processes of a lease use together, by GPU.
type leaseUse struct {
	memory    map[gpu.UUID]uint64
	unknown   map[gpu.UUID]bool // the driver does not report the memory of a process
	processes map[int]bool      // on GPUs
	stage     string
}

func (u *leaseUse) sample() observe.LeaseSample {
	s := observe.LeaseSample{Processes: len(u.processes), Stage: u.stage}
	for _, b := range u.memory {
		s.Memory += b
	}
	return s
}

// sampleGPU reads one GPU and adds what each lease uses.
func (en *Enforcer) sampleGPU(ctx context.Context, id gpu.UUID, leases []lease.Lease, used map[string]*leaseUse) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for i := range leases {
		if used[leases[i].ID] == nil {
			used[leases[i].ID] = &leaseUse{memory: map[gpu.UUID]uint64{}, unknown: map[gpu.UUID]bool{}, processes: map[int]bool{}}
		}
	}
	sample, err := en.readSample(ctx, id)
	if err != nil {
		for i := range leases {
			used[leases[i].ID].unknown[id] = true
		}
		return
	}
	en.Samples.Put(id, sample)
	seen := map[int]bool{}
	leaseOf := en.Attribution.LeaseLookup(len(sample.Processes))
	for i := range sample.Processes {
		p := &sample.Processes[i]
		owner, ok := leaseOf(p.PID)
		u := used[owner]
		if !ok || u == nil {
			continue
		}
		u.processes[p.PID] = true
		if seen[p.PID] {
			continue // A process may be in two of the driver's lists, with the same memory.
		}
		seen[p.PID] = true
		if p.Memory == nil {
			u.unknown[id] = true
			continue
		}
		u.memory[id] += *p.Memory
	}
}

// readSample reads one GPU with as few messages as possible. On a partitioned GPU a snapshot reads everything of every
// instance, so there only memory and processes are read.
func (en *Enforcer) readSample(ctx context.Context, id gpu.UUID) (observe.GPUSample, error) {
	out := observe.GPUSample{Node: en.Observer.Last().Seq}
	if en.State.Desired().Mode(id) != api.ModeMIG {
		s, err := en.Driver.Snapshot(ctx, id)
		out.Memory, out.Processes, out.Utilization = s.Memory, s.Processes, s.Utilization
		return out, err
	}
	memory, err := en.Driver.Memory(ctx, id)
	processes, err2 := en.Driver.Processes(ctx, id)
	out.Memory, out.Processes = memory, processes
	return out, errors.Join(err, err2)
}

// escalate makes one step of the memory escalation of a GPU and carries out its decisions.
func (en *Enforcer) escalate(ctx context.Context, now time.Duration, id gpu.UUID, escalation *quota.Escalation, leases []lease.Lease, used map[string]*leaseUse) (closeToLimit bool) {
	accounts := map[lease.Key]*quota.MemoryAccount{}
	var order []lease.Key
	for i := range leases {
		l := &leases[i]
		limit := state.GrantMemory(&l.Terms.Spec)
		if limit == 0 {
			continue
		}
		key := l.Terms.Key()
		a := accounts[key]
		if a == nil {
			a = &quota.MemoryAccount{ID: key.Tenant + "/" + key.Grant, Limit: limit, Policy: en.Overuse(l), Grace: graceOf(l)}
			accounts[key] = a
			order = append(order, key)
		}
		use := quota.MemoryUse{Lease: l.ID, NeverFreeze: !l.Isolation.Freeze, InPlace: l.InPlace()}
		if u := used[l.ID]; u != nil && !u.unknown[id] {
			b := u.memory[id]
			use.Used = &b
			a.Leases = append(a.Leases, use)
			continue
		}
		a.Leases = append(a.Leases, use)
	}
	list := make([]quota.MemoryAccount, 0, len(order))
	for _, key := range order {
		list = append(list, *accounts[key])
		var sum uint64
		for _, u := range accounts[key].Leases {
			if u.Used != nil {
				sum += *u.Used
			}
		}
		switch {
		case sum > accounts[key].Limit:
			setStage(leases, key, used, "over")
		case sum >= accounts[key].Limit/10*9:
			setStage(leases, key, used, "notice")
		}
		closeToLimit = closeToLimit || sum >= accounts[key].Limit/10*9
	}
	for _, a := range escalation.Evaluate(now, list) {
		en.act(ctx, id, a, leases, used)
	}
	return closeToLimit
}

func setStage(leases []lease.Lease, key lease.Key, used map[string]*leaseUse, stage string) {
	for i := range leases {
		if u := used[leases[i].ID]; u != nil && leases[i].Terms.Key() == key {
			u.stage = stage
		}
	}
}

// Overuse returns what happens to a lease that uses too much GPU memory: nothing on a node that only observes.
func (en *Enforcer) Overuse(l *lease.Lease) quota.OverusePolicy {
	switch {
	case !en.State.Desired().Enforcing():
		return quota.OveruseObserve
	case l.Terms.Overuse == nil || l.Terms.Overuse.GPUMemory == "":
		return quota.OveruseNotify
	}
	return quota.OverusePolicy(l.Terms.Overuse.GPUMemory)
}

func graceOf(l *lease.Lease) time.Duration {
	if o := l.Terms.Overuse; o != nil && o.Grace != nil {
		return time.Duration(*o.Grace)
	}
	return defaultGrace
}

// act carries out one decision. Before a lease is stopped its use is measured again.
func (en *Enforcer) act(ctx context.Context, id gpu.UUID, a quota.MemoryAction, leases []lease.Lease, used map[string]*leaseUse) {
	tenant, grant := splitAccount(a.Account)
	for i := range leases {
		l := &leases[i]
		if l.Terms.Tenant != tenant || l.Terms.Spec.Name != grant || a.Lease != "" && a.Lease != l.ID {
			continue
		}
		if a.Notify {
			en.Table.Notice(l.ID, lease.Notice{Text: a.String()})
		}
	}
	en.Events.Publish(api.Event{Kind: "memory." + string(a.Kind), GPU: string(id), Tenant: tenant, Lease: a.Lease, Message: a.String()})
	en.Log.Info("GPU memory", "do", a.Kind, "account", a.Account, "lease", a.Lease, "used", a.Used, "limit", a.Limit)
	i := slices.IndexFunc(leases, func(l lease.Lease) bool { return l.ID == a.Lease })
	// A node that only observes stops no lease, and thaws those that it froze before.
	if i < 0 || !en.State.Desired().Enforcing() && a.Kind != quota.MemoryThaw {
		return
	}
	l := &leases[i]
	if u := used[l.ID]; u != nil && (a.Kind == quota.MemoryStop || a.Kind == quota.MemoryKill) {
		u.stage = "stopping"
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := en.actOn(ctx, id, a, l); err != nil {
		en.Log.Error("cannot act on a lease that uses too much GPU memory", "do", a.Kind, "lease", l.ID, "error", err)
	}
}

func (en *Enforcer) actOn(ctx context.Context, id gpu.UUID, a quota.MemoryAction, l *lease.Lease) error {
	if l.InPlace() {
		return en.actOnAttached(ctx, id, a, l)
	}
	switch a.Kind {
	case quota.MemoryFreeze:
		if en.Freezer == nil {
			return nil // Nothing can be frozen here; the status shows it.
		}
		return en.Freezer.Freeze(ctx, l.ID, cgroup.ForGPUMemory, cgroup.Forever)
	case quota.MemoryThaw:
		if en.Freezer == nil {
			return nil
		}
		return en.Freezer.Thaw(ctx, l.ID, cgroup.ForGPUMemory)
	case quota.MemoryStop, quota.MemoryKill:
		if still, err := en.stillOver(ctx, id, a); err != nil || !still {
			return err
		}
		// A lease that got no SIGTERM, because it was below its limit for a moment or the measurement failed, gets it first.
		// The quota decides again.
		if s := en.stopAttempts[l.ID]; a.Kind == quota.MemoryKill && s != nil && s.escalation.Terminated() {
			return s.escalation.Kill(ctx)
		}
		if err := en.Table.Ending(l.ID, a.String()); err != nil {
			return err
		}
		s := &stopAttempt{escalation: en.Stopper.EscalationOf(l)}
		en.stopAttempts.put(l.ID, s)
		return s.escalation.Terminate(ctx)
	case quota.MemoryNotice, quota.MemoryOver, quota.MemoryClear, quota.MemoryLeak:
	}
	return nil
}

// stillOver measures an account again.
func (en *Enforcer) stillOver(ctx context.Context, id gpu.UUID, a quota.MemoryAction) (bool, error) {
	processes, err := en.Driver.Processes(ctx, id)
	if err != nil {
		return false, err
	}
	tenant, grant := splitAccount(a.Account)
	var sum uint64
	seen := map[int]bool{}
	leaseOf := en.Attribution.LeaseLookup(len(processes))
	for _, p := range processes {
		owner, ok := leaseOf(p.PID)
		if !ok || p.Memory == nil || seen[p.PID] {
			continue
		}
		seen[p.PID] = true
		if l, ok := en.Table.Get(owner); ok && l.Terms.Tenant == tenant && l.Terms.Spec.Name == grant {
			sum += *p.Memory
		}
	}
	return sum > a.Limit, nil
}

func splitAccount(id string) (tenant, grant string) {
	for i := range id {
		if id[i] == '/' {
			return id[:i], id[i+1:]
		}
	}
	return id, ""
}

// slice gives the scheduler of a time-sliced GPU its leases and their utilization.
func (en *Enforcer) slice(ctx context.Context, id gpu.UUID, leases []lease.Lease, used map[string]*leaseUse) {
	want := en.State.Desired()
	if want.Mode(id) != api.ModeTimeslice {
		en.Shares.set(en, id, 0, nil)
		return
	}
	round := time.Duration(0)
	if e := want.GPUs[id]; e.Timeslice != nil && e.Timeslice.Round != nil {
		round = time.Duration(*e.Timeslice.Round)
	}
	var list []quota.Member
	for i := range leases {
		l := &leases[i]
		s := l.Terms.Spec.Timeslice
		if s == nil || l.State != lease.Running {
			continue
		}
		m := quota.Member{
			Lease: l.ID, Grant: l.Terms.Tenant + "/" + l.Terms.Spec.Name, Share: float64(s.Share),
			Active: used[l.ID] != nil && len(used[l.ID].processes) > 0, NeverFreeze: !l.Isolation.Freeze,
		}
		if s.Cap != nil {
			part := float64(*s.Cap) / 100
			m.Cap = &part
		}
		list = append(list, m)
	}
	en.Shares.set(en, id, round, list)
	if sl := en.Shares.get(id); sl != nil {
		sl.observe(ctx, en, id)
	}
}
