package enforce

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// terminateJob sends SIGTERM to each process of the job of an engine that uses the GPU. The engine supervises the job from its cgroup:
// its own processes there, and those of the job that do not use the GPU, run on, and the engine sees how its tasks ended.
func (en *Enforcer) terminateJob(ctx context.Context, s *sampler, a quota.MemoryAction, l *lease.Lease) (*stopAttempt, error) {
	job, pids, err := en.Stopper.ProcessesOn(ctx, l, s.id)
	if err != nil || job == nil {
		return nil, err
	}
	attempt := &stopAttempt{lease: l.ID, processes: job, escalation: &stop.Escalation{Target: job, Notify: func(context.Context) {
		en.Table.SetReason(l.ID, a.String()) // Before its processes end: then the engine reads it.
		en.Table.Notice(
			l.ID,
			lease.Notice{Kind: "memory.victim", Text: fmt.Sprintf("pids %v get SIGTERM: they are those of the job on the GPU", pids)},
		)
	}}}
	if err := attempt.escalation.Terminate(ctx); err != nil {
		job.Close()
		return nil, err
	}
	return attempt, nil
}
