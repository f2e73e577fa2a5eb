package attribution

import (
	"context"
	"os"
	"slices"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

// deviceUser reads a process that uses a device, and decides what a change may do with it under a spec.
func (attr *Attribution) deviceUser(want *state.Desired, daemons []*mps.State, pid int) planner.DeviceUser {
	h, login := planner.DeviceUser{PID: pid}, false
	st, err := procfs.Read(pid)
	if procfs.Ended(st, err) {
		h.Decision = planner.Ended
		return h
	}
	if err != nil {
		return h // It is not known what it is: it counts.
	}
	h.Start, h.Name, h.Age = st.Start, st.Name, procfs.Age(st.Start)
	if cg, err := procfs.Cgroup(pid); err == nil {
		h.Unit, login = unitOf(cg), stop.InLogin(cg)
	}
	if id, ok := attr.LeaseOf(pid); ok {
		h.Lease = id
		if l, ok := attr.Table.Get(id); ok {
			h.Tenant = l.Terms.Tenant
		}
		return h
	}
	may := stop.DecidePID(pid)
	switch {
	case pid == os.Getpid() || pid == attr.WorkerPID() || ServesMPS(daemons, st) ||
		slices.ContainsFunc(daemons, func(m *mps.State) bool { return m.PID == pid }):
		h.Decision = planner.Own
	case want.Quiesces(h.Unit) && !attr.CanStopUnits:
		h.Decision, h.Reason = planner.Keep, "node.quiesce names its unit, and stopping units needs systemd"
	case want.Quiesces(h.Unit):
		h.Decision = planner.Quiesce
	case may == stop.IsRoot && login:
		h.Decision, h.Reason = planner.Keep, "root's, which --force leaves alone: end it"
	case may != stop.MayStop:
		h.Decision, h.Reason = planner.Keep, "the system's, which --force leaves alone: stop it, or name its unit in node.quiesce"
	}
	return h
}

// DeviceUsers names the processes in the way now, for a driver call that was refused because a device is in use.
func (attr *Attribution) DeviceUsers(ctx context.Context, s gpu.Snapshot, in *gpu.Instance) []string {
	g := observe.GPU{Snapshot: s}
	if last, ok := attr.Observer.Last().GPU(s.Identity.UUID); ok {
		g.MPS, g.InstanceMPS = last.MPS, last.InstanceMPS
	}
	g.MIG.Resetless = nil // Processes that only have the device open are named too.
	use := attr.UsageUnder(attr.State.Desired(), attr.OpenDevices(ctx, []observe.GPU{g}))
	var out []string
	for _, h := range planner.BlockingProcesses(&g, in, use) {
		out = append(out, h.String())
	}
	return out
}
