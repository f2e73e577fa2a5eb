package enforce

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/quota"
)

const (
	// snapshotInterval is the time between two snapshots of a GPU with leases.
	snapshotInterval = 2 * time.Second
	// nearSnapshotInterval is the same while little headroom is left.
	nearSnapshotInterval = 10 * time.Second
)

// readTimeout limits one reading of a GPU.
const readTimeout = 2 * time.Second

// readSample lists the processes of the GPU. Now and then it takes a snapshot, which has its utilization too but needs many
// more calls; rarely near the limit, and not on a partitioned GPU, where it reads everything of every instance.
func (s *sampler) readSample(ctx context.Context, memory gpu.Memory, near bool) (observe.GPUSample, error) {
	out := observe.GPUSample{Node: s.en.Observer.Last().Seq}
	snapshot, err := s.snapshot, error(nil)
	interval := snapshotInterval
	if near {
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
	s.crossCheck(&out)
	return out, nil
}

// crossCheck reports GPU memory that no process accounts for. No lease is blamed for it. Memory and processes are read one
// after the other, so that memory which was freed in between appears in one list only: the lower one of two lists counts.
func (s *sampler) crossCheck(sample *observe.GPUSample) {
	newest := sample.Unattributed
	if newest == nil {
		s.unattributed = nil
		return
	}
	if s.unattributed != nil {
		sample.Unattributed = new(min(*newest, *s.unattributed))
	} else {
		sample.Unattributed = new(uint64)
	}
	s.unattributed = newest
	large := *sample.Unattributed >= quota.UnattributedLarge
	if large && !s.reported {
		text := fmt.Sprintf("GPU %s has %s of GPU memory in no process", s.id, api.Bytes(*sample.Unattributed).Short())
		s.en.Log.Warn(
			"GPU memory in no process: managed memory, a process of another pid namespace, or memory that was not freed", "gpu", s.id,
			"bytes", *sample.Unattributed,
		)
		s.en.Events.Publish(api.Event{Kind: "memory.unattributed", GPU: string(s.id), Message: text})
	}
	s.reported = large
}

// stillOver measures an account again.
func (en *Enforcer) stillOver(ctx context.Context, id gpu.UUID, a quota.MemoryAction) (bool, error) {
	processes, err := en.Driver.Processes(ctx, id)
	if err != nil {
		return false, err
	}
	var sum uint64
	seen := map[int]bool{}
	leaseOf := en.Attribution.LeaseLookup(len(processes))
	for _, p := range processes {
		owner, ok := leaseOf(p.PID)
		if !ok || p.Memory == nil || seen[p.PID] {
			continue
		}
		seen[p.PID] = true
		if l, ok := en.Table.Get(owner); ok && accountOf(&l) == a.Account {
			sum += *p.Memory
		}
	}
	return sum > a.Limit, nil
}
