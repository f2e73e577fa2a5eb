package daemon

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/mps"
)

// fate is what becomes of a process that is in the way of a change.
type fate int

const (
	forced   fate = iota // --force stops it, the polite way
	quiesced             // its unit is stopped for the change by the spec, and started again
	spared               // it stays whatever the authority, so that there is no such change
	ourOwn               // it is ours: what makes the change sees to it
)

// deviceHolder is a process that keeps a device busy.
type deviceHolder struct {
	pid    int
	start  uint64 // 0: it was not read
	name   string
	unit   string // that it is in
	tenant string
	lease  string
	age    time.Duration
	fate   fate
	why    string // it is spared
}

// String names it for people: "pid 812 (dcgm-exporter, dcgm-exporter.service, for 3h)".
func (h *deviceHolder) String() string {
	words := []string{h.name}
	if h.name == "" {
		words[0] = "it has just ended"
	}
	if h.tenant != "" {
		words = append(words, "tenant "+h.tenant)
	}
	if h.lease != "" {
		words = append(words, "lease "+h.lease)
	}
	if h.unit != "" {
		words = append(words, h.unit)
	}
	if h.age > 0 {
		words = append(words, "for "+ageText(h.age))
	}
	s := strings.Join(words, ", ")
	if h.why != "" {
		s += "; " + h.why
	}
	return fmt.Sprintf("pid %d (%s)", h.pid, s)
}

// ageText is how long something runs, as exact as anybody wants it.
func ageText(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// holderOf reads who a process is, and what may be done with it under a spec.
func (d *Attribution) holderOf(want *desired, m *mps.State, pid int) deviceHolder {
	h := deviceHolder{pid: pid}
	st, err := procfs.Read(pid)
	if err != nil {
		return h // It ended, or soon will: nobody has to be spared.
	}
	h.start, h.name = st.Start, st.Name
	if age := procfs.BootTime() - time.Duration(st.Start)*time.Second/ticks; age > 0 {
		h.age = age
	}
	var login bool
	if cg, err := procfs.Cgroup(pid); err == nil {
		h.unit, login = unitOf(cg)
	}
	if id, ok := d.ownerOf(pid); ok {
		h.lease = id
		if l, ok := d.table.Get(id); ok {
			h.tenant = l.Terms.Tenant
		}
		return h
	}
	uid, err := procfs.UID(pid)
	switch {
	case pid == os.Getpid() || pid == d.workerPID() || servesMPS(m, st) || m != nil && m.PID == pid:
		h.fate = ourOwn
	case want.quiesces(h.unit) && !d.stopsUnits:
		h.fate, h.why = spared, "node.quiesce names its unit, and nothing here can stop units"
	case want.quiesces(h.unit):
		h.fate = quiesced
	// Monitoring, a display, another job manager. Who installs those knows why, and most are started again when they end.
	case err != nil || uid < firstUser && !login && os.Geteuid() == 0:
		h.fate, h.why = spared, "the system's, which --force leaves alone: stop it, or name its unit in node.quiesce"
	}
	return h
}

// firstUser is the first uid of people; those below are root's and the system's services'.
const firstUser = 1000

// quiesces tells whether the spec has a unit stopped around MIG changes.
func (d *desired) quiesces(unit string) bool {
	return unit != "" && d.spec != nil && slices.Contains(d.spec.Node.Quiesce, unit)
}

// inTheWay are the processes that use an instance, or with nil the GPU: those that the driver lists, and those that merely
// have its nodes open. Whoever has the node of a whole GPU open is in the way of its reset only.
func inTheWay(g *observe.GPU, in *gpu.Instance, use usage) []deviceHolder {
	var pids []int
	for i := range g.Processes {
		p := &g.Processes[i]
		if in != nil && (p.GI == nil || *p.GI != in.ID) {
			continue
		}
		if in == nil && p.Kind == gpu.MPSProcess {
			continue // It is counted with its server.
		}
		pids = append(pids, p.PID)
	}
	if in != nil || g.MIG.Resetless == nil || !*g.MIG.Resetless {
		pids = append(pids, use.opened.of(g.Identity.UUID, in)...)
	}
	slices.Sort(pids)
	var out []deviceHolder
	for _, pid := range slices.Compact(pids) {
		if h := use.process(g.MPS, pid); h.fate != ourOwn {
			out = append(out, h)
		}
	}
	return out
}

// holders names who uses an instance, or with nil the GPU: leases first, then processes of no lease. Those whose unit is
// stopped for the change are not in its way. stays: one of them stays whatever the authority.
func holders(g *observe.GPU, in *gpu.Instance, use usage) (names []string, stays []string) {
	var leases []string
	if in != nil {
		leases = use.instance(g.Identity.UUID, in.Placement)
	} else {
		leases = use.gpu(g.Identity.UUID)
	}
	names = slices.Clone(leases)
	for _, h := range inTheWay(g, in, use) {
		if h.fate == quiesced || h.lease != "" && slices.Contains(leases, h.lease) {
			continue // It goes with its unit, or with its lease.
		}
		names = append(names, h.String())
		if h.fate == spared && !use.anyone {
			stays = append(stays, h.String())
		}
	}
	return names, stays
}

// holdersOn lists who uses the instances of a GPU, or the GPU when it has none, for tools: those that a refusal names.
func holdersOn(g *observe.GPU, use usage) []api.Holder {
	var out []api.Holder
	add := func(in *gpu.Instance, name string, leases []string) {
		id, named := string(g.Identity.UUID), map[string]bool{}
		for _, h := range inTheWay(g, in, use) {
			if h.fate == quiesced {
				continue
			}
			named[h.lease] = true
			out = append(out, api.Holder{
				GPU: id, Instance: name, PID: h.pid, Command: h.name, Unit: h.unit, Tenant: h.tenant, Lease: h.lease, Seconds: h.age.Seconds(), Stays: h.fate == spared,
			})
		}
		for _, l := range leases {
			if !named[l] {
				out = append(out, api.Holder{GPU: id, Instance: name, Lease: l})
			}
		}
	}
	for i := range g.Instances {
		in := &g.Instances[i]
		add(in, fmt.Sprintf("%s at %d", profileName(g.Profiles, in.ProfileID), in.Placement.Start), use.instance(g.Identity.UUID, in.Placement))
	}
	if len(g.Instances) == 0 {
		add(nil, "", use.gpu(g.Identity.UUID))
	}
	return out
}

// whoUses names who is in the way now, for a driver that refused because of somebody.
func (d *Attribution) whoUses(ctx context.Context, s gpu.Snapshot, in *gpu.Instance) []string {
	g := observe.GPU{Snapshot: s}
	if last, ok := d.observer.Last().GPU(s.Identity.UUID); ok {
		g.MPS = last.MPS
	}
	g.MIG.Resetless = nil // Whoever merely has it open is named too.
	use := d.usageUnder(d.state.Desired(), d.devicesOpen(ctx, []observe.GPU{g}))
	var out []string
	for _, h := range inTheWay(&g, in, use) {
		out = append(out, h.String())
	}
	return out
}
