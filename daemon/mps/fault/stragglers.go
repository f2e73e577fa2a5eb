package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

const (
	// grace is how long a process may take to exit after a fault has taken its context.
	grace = 10 * time.Second
	// checkInterval is the time between two looks for processes that did not.
	checkInterval = time.Second
)

// Run ends what stays after a fault, until ctx ends.
func (f *Faults) Run(ctx context.Context) {
	var tasks loop.Group
	defer tasks.Wait()
	for loop.Every(ctx, checkInterval) {
		f.stopStragglers(ctx, &tasks)
	}
}

// straggler is a process that a fault has left, with what is said of it.
type straggler struct {
	on      mps.Device
	lease   lease.Lease
	process cgroup.Process
	text    string
}

// stopStragglers stops the processes of leases that did not exit: no client joins before they have. Those of no lease are only named in
// the condition.
func (f *Faults) stopStragglers(ctx context.Context, tasks *loop.Group) {
	for _, s := range f.due() {
		tasks.Go(func() {
			err := f.Stopper.Members(ctx, &s.lease, []cgroup.Process{s.process}, func(context.Context) {
				f.Events.Publish(api.Event{
					Kind:    "mps.fault.stopped",
					GPU:     string(s.on.GPU),
					Tenant:  s.lease.Terms.Tenant,
					Lease:   s.lease.ID,
					Message: s.text,
				})
				f.Audit("gpushared", "mps-fault", s.text)
				f.Leases.Note(s.lease.ID, lease.Notice{Text: s.text})
			})
			if err != nil && ctx.Err() == nil {
				f.Log.Error("cannot stop a process after a fault of MPS", "lease", s.lease.ID, "error", err)
			}
			f.Wake()
		})
	}
}

// due returns the processes that are to be stopped now, each one once.
func (f *Faults) due() []straggler {
	node := f.Observed()
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []straggler
	for i := range node.GPUs {
		g := &node.GPUs[i]
		for _, m := range g.ControlDaemons() {
			d := f.on[m.Device()]
			if d == nil || m.Fault == nil || !m.Fault.Since.Equal(d.since) || f.Now().Sub(m.Fault.Since) < grace {
				continue
			}
			for _, pid := range m.Fault.Stragglers {
				id, leased := f.LeaseOf(pid)
				if !leased || d.stopping[pid] {
					continue
				}
				d.stopping[pid] = true
				st, err := procfs.Read(pid)
				l, known := f.Lease(id)
				if err != nil || st.Dead() || !known {
					continue
				}
				out = append(out, straggler{
					m.Device(),
					l,
					cgroup.Process{PID: pid, Start: st.Start},
					fmt.Sprintf(
						"pid %d (%s) is stopped: a fatal fault under MPS of %s took its GPU context, and no process can join before it has ended",
						pid,
						st.Name,
						planner.DeviceName(g, m.Device()),
					),
				})
			}
		}
	}
	return out
}
