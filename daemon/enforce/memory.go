package enforce

import (
	"context"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

const (
	// snapshotInterval is the time between two snapshots of a GPU with leases.
	snapshotInterval = 2 * time.Second
	// nearSnapshotInterval is the same while little headroom is left.
	nearSnapshotInterval = 10 * time.Second
)

// defaultGrace is the default of overuse.grace.
const defaultGrace = 10 * time.Second

// readSample lists the processes of the GPU. Now and then it takes a snapshot, which has its utilization too but needs many
// more calls; not while little headroom is left, and not on a partitioned GPU, where it reads everything of every instance.
func (s *sampler) readSample(ctx context.Context, memory gpu.Memory) (observe.GPUSample, error) {
	out := observe.GPUSample{Node: s.en.Observer.Last().Seq}
	snapshot, err := s.snapshot, error(nil)
	interval := snapshotInterval
	if s.control.Near(s.device(memory), s.en.SampleInterval()) {
		interval = nearSnapshotInterval
	}
	mig := s.en.State.Desired().Mode(s.id) == api.ModeMIG
	if now := s.now(); !mig && (snapshot.Memory.Total == 0 || now >= s.snapshotAt+interval) {
		snapshot, err = s.en.Driver.Snapshot(ctx, s.id)
		s.snapshotAt = now
	} else {
		snapshot.Memory, snapshot.MIG.Current = memory, snapshot.MIG.Current || mig
		snapshot.Processes, err = s.en.Driver.Processes(ctx, s.id)
	}
	if err != nil {
		return out, err
	}
	s.snapshot = snapshot
	out.Memory, out.Processes, out.Utilization = snapshot.Memory, snapshot.Processes, snapshot.Utilization
	out.ReadAt = s.en.Now()
	out.UtilizationReadAt = out.ReadAt.Add(s.snapshotAt - s.now())
	if b, ok := quota.Unattributed(&snapshot); ok {
		out.Unattributed = &b
	}
	return out, nil
}

// accounts are the grants with leases on a GPU, with what each lease uses.
func (en *Enforcer) accounts(leases []lease.Lease, used map[string]*leaseUse) []quota.MemoryAccount {
	var list []quota.MemoryAccount
	for i := range leases {
		l := &leases[i]
		limit := state.GrantMemory(&l.Terms.Spec)
		if limit == 0 {
			continue
		}
		id := accountOf(l)
		k := slices.IndexFunc(list, func(a quota.MemoryAccount) bool { return a.ID == id })
		if k < 0 {
			k = len(list)
			list = append(list, quota.MemoryAccount{
				ID:           id,
				Limit:        limit,
				Policy:       overuse(l),
				Grace:        graceOf(l),
				HighPriority: l.Terms.Priority == "high",
				DryRun:       !en.State.Desired().Enforcing(),
			})
		}
		use := quota.MemoryUse{Lease: l.ID, NeverFreeze: !l.Isolation.Freeze || en.Freezer == nil, InPlace: l.InPlace()}
		if u := used[l.ID]; u != nil {
			use.Used = u.memory
		}
		list[k].Leases = append(list[k].Leases, use)
	}
	return list
}

func accountOf(l *lease.Lease) string { return l.Terms.Tenant + "/" + l.Terms.Spec.Name }

// overuse is what the spec says about a lease that uses too much GPU memory.
func overuse(l *lease.Lease) quota.OverusePolicy {
	if l.Terms.Overuse == nil || l.Terms.Overuse.GPUMemory == "" {
		return quota.OveruseNotify
	}
	return quota.OverusePolicy(l.Terms.Overuse.GPUMemory)
}

// Overuse returns what happens to a lease that uses too much GPU memory: nothing on a node that only observes.
func (en *Enforcer) Overuse(l *lease.Lease) quota.OverusePolicy {
	if !en.State.Desired().Enforcing() {
		return quota.OveruseObserve
	}
	return overuse(l)
}

func graceOf(l *lease.Lease) time.Duration {
	if o := l.Terms.Overuse; o != nil && o.Grace != nil {
		return time.Duration(*o.Grace)
	}
	return defaultGrace
}

// act carries out one decision. Signals are sent by a goroutine of their own, which measures the use again before.
func (s *sampler) act(ctx context.Context, a quota.MemoryAction, leases []lease.Lease) {
	en := s.en
	attributes := []any{"do", a.Kind, "gpu", s.id, "account", a.Account, "lease", a.Lease, "used", a.Used, "limit", a.Limit}
	if len(a.Candidates) > 0 {
		attributes = append(attributes, "candidates", a.CandidateList())
	}
	if a.DryRun {
		en.Log.Info("GPU memory: not done, the node only observes", append(attributes, "would", a.String())...)
		return
	}
	if a.Retry {
		en.Log.Debug("GPU memory: again", attributes...)
		s.carryOut(ctx, a, leases)
		return
	}
	en.Log.Info("GPU memory", append(attributes, "message_id", report.MessageMemory)...)
	if a.Kind == quota.MemoryFreeze && !s.carryOut(ctx, a, leases) {
		return
	}
	tenant, _ := splitAccount(a.Account)
	en.Events.Publish(api.Event{Kind: "memory." + string(a.Kind), GPU: string(s.id), Tenant: tenant, Lease: a.Lease, Message: a.String()})
	for i := range leases {
		if l := &leases[i]; a.Notify && accountOf(l) == a.Account && (a.Lease == "" || a.Lease == l.ID) {
			en.Table.Notice(l.ID, lease.Notice{Text: a.String()})
		}
	}
	if a.Kind != quota.MemoryFreeze { // The users are informed before.
		s.carryOut(ctx, a, leases)
	}
}

// carryOut does what an action says. ok is false when a lease could not be frozen.
func (s *sampler) carryOut(ctx context.Context, a quota.MemoryAction, leases []lease.Lease) (ok bool) {
	en := s.en
	switch a.Kind {
	case quota.MemoryFreeze:
		if err := en.frozen.freeze(ctx, en, s, a.Lease, a.Until-s.now()); err != nil {
			s.report("freeze", a.Lease, err)
			s.report("thaw", a.Lease, en.frozen.thaw(ctx, en, s, a.Lease)) // Some of its processes may be frozen.
			s.control.Escalation.NotFrozen(a.Lease, s.now())
			return false
		}
	case quota.MemoryThaw:
		s.report("thaw", a.Lease, en.frozen.thaw(ctx, en, s, a.Lease))
	case quota.MemoryStop, quota.MemoryKill:
		if i := slices.IndexFunc(leases, func(l lease.Lease) bool { return l.ID == a.Lease }); i >= 0 {
			s.signal(a, leases[i])
		}
	case quota.MemoryNotice, quota.MemoryOver, quota.MemoryClear, quota.MemoryLeak, quota.MemoryPressure:
	}
	return true
}

func (s *sampler) report(what, id string, err error) {
	if err != nil {
		s.en.Log.Error("cannot act on a lease that uses too much GPU memory", "do", what, "lease", id, "error", err)
	}
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
func (en *Enforcer) slice(id gpu.UUID, leases []lease.Lease, used map[string]*leaseUse) {
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
			Active: used[l.ID] != nil && len(used[l.ID].processes) > 0, NeverFreeze: !l.Isolation.Freeze, Held: en.withheld(l.ID),
			Priority: priorityOf(l.Terms.Priority),
		}
		if s.Cap != nil {
			part := float64(*s.Cap) / 100
			m.Cap = &part
		}
		list = append(list, m)
	}
	en.Shares.set(en, id, round, list)
}

func priorityOf(word string) quota.Priority {
	switch word {
	case "low":
		return quota.PriorityLow
	case "high":
		return quota.PriorityHigh
	}
	return quota.PriorityNormal
}
