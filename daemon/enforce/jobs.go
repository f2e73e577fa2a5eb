package enforce

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// jobs permits to freeze the cgroups of jobs of engines. *cgroup.JobFreezer does.
type jobs interface {
	Permit(id string, at cgroup.JobCgroup)
	Forbid(id string)
	// Outside returns why a job cannot be frozen whole: one of these processes is where nothing is frozen.
	Outside(at cgroup.JobCgroup, pids []int) error
}

// layouts are how engines lay out the cgroups of their jobs.
var layouts = map[string]cgroup.JobLayout{api.OwnerSlurm: cgroup.SlurmLayout, api.OwnerKubernetes: cgroup.PodLayout}

// errMemoryFirst is why a job is not frozen whose processes are being ended.
var errMemoryFirst = errors.New("its processes on the GPU are being ended for their GPU memory, and get SIGTERM only while they run")

// permit permits or forbids to freeze a lease in place, and returns why it is never frozen; nil: it may be frozen.
func (en *Enforcer) permit(l *lease.Lease, used *leaseUse, stage string) error {
	if en.Jobs == nil {
		return errors.New("nothing can be frozen here")
	}
	why := func() error {
		if why := en.State.Desired().NeverFrozen(l); why != "" {
			return errors.New(why)
		}
		if stage == quota.StageStopping {
			return errMemoryFirst
		}
		if err := en.others(l); err != nil {
			return err
		}
		at := cgroup.JobCgroup{Layout: layouts[l.Engine.Name()], Paths: l.Cgroups()}
		var pids []int
		if used != nil {
			for pid := range used.processes {
				pids = append(pids, pid)
			}
		}
		if err := en.Jobs.Outside(at, pids); err != nil {
			return err
		}
		en.Jobs.Permit(l.ID, at)
		return nil
	}()
	if why != nil {
		en.Jobs.Forbid(l.ID)
	}
	return why
}

// others returns why a lease is not frozen whose cgroups another engine than root named: processes of other users are in them.
func (en *Enforcer) others(l *lease.Lease) error {
	if stop.NamedByRoot(l) {
		return nil
	}
	members, err := en.Attribution.PortOf(l).Members(context.Background(), l.ID)
	if err != nil {
		return err
	}
	for _, m := range members {
		if d := stop.DecideNamed(l, m.PID); d == stop.IsRoot || d == stop.IsOther {
			return fmt.Errorf("pid %d (%s) in its cgroup is not of %s", m.PID, procfs.Name(m.PID), l.User)
		}
	}
	return nil
}
