package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/quota"
)

// statusInputs is all that the status is rendered from. It is collected once; rendering reads nothing else.
type statusInputs struct {
	host            string
	adapter         string
	now             time.Time
	node            *observe.Node
	desired         *state.Desired
	leases          []api.Lease
	granted         map[gpu.UUID][]api.GrantedMemory
	users           []api.UserStatus
	changing        string // the running operation
	starting        bool   // the node was not yet compared with the spec
	closures        closing.Closures
	conditions      []api.Condition
	limits          map[string][]api.LimitStatus // by tenant
	sampled         func(gpu.UUID) bool          // its memory and processes are newer than the observation
	leaseOf         func(pid int) (lease string, ok bool)
	command         func(pid int) string
	servesMPS       func(daemons []*mps.State, pid int) bool
	container       func(state.GrantKey) *api.ContainerUse
	memoryQualifier func(t *api.TenantSpec, g *api.GrantSpec) string
	foreign         func(id gpu.UUID, in *gpu.Instance) bool
	stored          store.State
	gpuReadings
	frozen         func(tenant string) *api.TenantFreeze
	instanceRecord func(id gpu.UUID, at gpu.Placement) *store.InstanceRecord    // of a managed instance; nil when there is none
	removedAt      func(id gpu.UUID, m *store.InstanceRecord) (time.Time, bool) // when an instance that no lease needs is removed
	nodes          devicepolicy.NodeNames
}

// gpuReadings is what the managers know of a GPU; nil: nothing.
type gpuReadings struct {
	timeSlices func(id gpu.UUID) *api.TimeSlices
	health     func(id gpu.UUID) *api.GPUHealth
	sensors    func(id gpu.UUID) *api.Sensors
	// instanceUse is how an instance was used lately, and the lease that had it alone for the whole interval.
	instanceUse func(id gpu.UUID, gi uint32) (use *api.InstanceUse, lease string)
}

// read sets what the managers know of a GPU. The sensors of one that does not answer are those of before.
func (r *gpuReadings) read(out *api.GPUStatus, id gpu.UUID, answers bool) {
	if r.health != nil {
		out.Health = r.health(id)
	}
	if r.sensors != nil && answers {
		out.Sensors = r.sensors(id)
	}
	if r.timeSlices != nil {
		out.TimeSlices = r.timeSlices(id)
	}
}

// render returns the status for a viewer who may see everything.
func (p *statusInputs) render() *api.Status {
	s := &api.Status{
		SchemaVersion: 1, At: p.now,
		Node: api.NodeStatus{
			Host:        p.host,
			Generation:  p.desired.Generation,
			Enforce:     p.desired.Enforce(),
			Driver:      p.node.Driver.DriverVersion,
			Adapter:     p.adapter,
			ClosedTo:    p.closedTo(),
			Conditions:  p.conditions,
			Operation:   p.changing,
			Starting:    p.starting,
			Unmanaged:   p.desired.Unmanaged,
			Times:       state.WireTimes(p.stored.StepDurations),
			Maintenance: closing.WireMaintenance(&p.stored),

			StatusVisible: p.desired.StatusVisible(),
		},
		GPUs: make([]api.GPUStatus, 0, len(p.node.GPUs)), Tenants: []api.TenantStatus{}, Leases: p.leases, Users: p.users,
	}
	if s.Leases == nil {
		s.Leases = []api.Lease{}
	}
	tenantOf := map[string]string{}
	for i := range p.leases {
		tenantOf[p.leases[i].ID] = p.leases[i].Tenant
	}
	for i := range p.node.GPUs {
		s.GPUs = append(s.GPUs, p.gpu(&p.node.GPUs[i], tenantOf))
	}
	for _, id := range p.node.Missing {
		s.GPUs = append(s.GPUs, api.GPUStatus{
			Index: id.Index, UUID: string(id.UUID), PCI: id.PCI, Model: id.Model, Mode: p.desired.Mode(id.UUID),
			State: "missing", Reason: state.MissingReason, Memory: api.GPUMemory{Total: id.Memory, Reserved: id.Memory},
		})
	}
	if p.desired.Spec != nil {
		for i := range p.desired.Spec.Tenants {
			s.Tenants = append(s.Tenants, p.tenant(&p.desired.Spec.Tenants[i]))
		}
	}
	return s
}

func (p *statusInputs) gpu(g *observe.GPU, tenantOf map[string]string) api.GPUStatus {
	id := g.Identity.UUID
	out := api.GPUStatus{
		Index: g.Identity.Index, UUID: string(id), PCI: g.Identity.PCI, Model: g.Identity.Model, Mode: p.desired.Mode(id),
		State: "ok", Memory: wireMemory(g.Memory), Utilization: g.Utilization, Granted: p.granted[id],
	}
	if !g.ReadAt.IsZero() {
		out.ReadAt = &g.ReadAt
	}
	if g.Utilization != nil && !g.UtilizationReadAt.IsZero() {
		out.UtilizationReadAt = &g.UtilizationReadAt
	}
	if out.Unattributed = g.Unattributed; out.Unattributed == nil && g.Err == nil && !p.sampled(id) {
		if b, ok := quota.Unattributed(&g.Snapshot); ok {
			out.Unattributed = &b
		}
	}
	if e := p.desired.GPUs[id]; e != nil {
		out.Owner, out.ShareWith = e.Owner, e.ShareWith
	}
	out.Cordoned = closing.WireCordon(closing.Cordoned.At(&p.stored, closing.OnGPU(id)))
	p.read(&out, id, g.Err == nil && p.node.DriverErr == nil)
	if out.Memory.Total == 0 {
		out.Memory.Total = g.Identity.Memory
	}
	p.close(&out, g)
	for i := range g.Processes {
		st := p.process(&g.Processes[i], tenantOf)
		if p.servesMPS(g.ControlDaemons(), st.PID) {
			st.Kind = "mps-server"
		}
		out.Processes = append(out.Processes, st)
	}
	if g.MIG.Current || g.MIG.Pending || out.Mode == api.ModeMIG {
		out.MIG = p.mig(g)
	}
	out.DeviceNode = p.nodes.GPU(&g.Identity)
	if out.Mode == api.ModeTimeslice || out.Mode == api.ModeMPS {
		out.Grantable = planner.Grantable(p.desired, g)
	}
	if out.Mode == api.ModeMPS {
		out.MPS = p.mps(g)
	}
	return out
}

// wireMemory is a reading of memory in which used, free and reserved are the total.
func wireMemory(m gpu.Memory) api.GPUMemory {
	out := api.GPUMemory{Total: m.Total, Used: min(m.Used, m.Total)}
	out.Free = min(m.Free, m.Total-out.Used)
	out.Reserved = m.Total - out.Used - out.Free
	return out
}

// closedTo returns the cgroups with a login filter that closes GPUs.
func (p *statusInputs) closedTo() []string {
	var out []string
	for _, f := range p.node.LoginFilters {
		if len(f.Filter.Closed) > 0 {
			out = append(out, f.Cgroup)
		}
	}
	slices.Sort(out)
	return out
}

// stateOf returns the state of a GPU that does not answer. It is lost if the driver says so, does not find it, or wants a reset of it
// first, as package daemon/health sees it. Every other error is of the call: it says nothing of the programs on the GPU.
func stateOf(err error) string {
	switch {
	case gpu.IsAny(err, gpu.ErrTimeout, gpu.ErrStuck):
		return "stuck"
	case errors.Is(err, gpu.ErrParked):
		return "parked"
	case gpu.IsAny(err, gpu.ErrNotLoaded, gpu.ErrNoLibrary):
		return "no-driver"
	case errors.Is(err, gpu.ErrVersionMismatch):
		return "mismatch"
	case gpu.IsAny(err, gpu.ErrLost, gpu.ErrNotFound, gpu.ErrResetRequired):
		return "lost"
	}
	return "unreadable"
}

func (p *statusInputs) process(r *gpu.Process, tenantOf map[string]string) api.ProcessStatus {
	out := api.ProcessStatus{PID: r.PID, Kind: string(r.Kind), Memory: r.Memory, Command: p.command(r.PID)}
	if lease, ok := p.leaseOf(r.PID); ok {
		out.Lease, out.Tenant = lease, tenantOf[lease]
	}
	return out
}

func (p *statusInputs) mig(g *observe.GPU) *api.MIGStatus {
	out := &api.MIGStatus{Enabled: g.MIG.Current, Pending: g.MIG.Pending}
	if e := p.desired.GPUs[g.Identity.UUID]; e != nil && e.MIG != nil {
		out.Layout, out.Dynamic = state.LayoutNames(e.MIG.Layout, g.Profiles), e.MIG.Dynamic
	}
	for i := range g.Instances {
		in := &g.Instances[i]
		st := api.InstanceStatus{
			ID: in.ID, Profile: g.Profiles.GIName(in.ProfileID), Placement: api.MIGPlacement(in.Placement),
			Memory:  wireMemory(in.Memory),
			Foreign: p.foreign(g.Identity.UUID, in),
		}
		if m := g.MPSAt(in.Placement); m != nil || p.desired.SharesInstances(g.Identity.UUID, g.Profiles, st.Profile) {
			st.MPS = p.instanceMPS(g, in)
		}
		for _, c := range in.Compute {
			st.UUIDs = append(st.UUIDs, string(c.UUID))
		}
		if p.instanceRecord != nil && !st.Foreign {
			if m := p.instanceRecord(g.Identity.UUID, in.Placement); m != nil {
				st.Generation, st.Imported = m.Generation, m.Imported
				if at, ok := p.removedAt(g.Identity.UUID, m); ok {
					st.RemovedAt = &at
				}
			}
		}
		for _, c := range planner.ComputeViews(in, p.profile(g, in)) {
			st.Compute = append(st.Compute, api.ComputeStatus{
				UUID: string(c.UUID), Profile: c.Name, DeviceNodes: p.nodes.Instance(g.Identity.UUID, in.Placement, c.UUID),
			})
		}
		if len(st.Compute) == 0 {
			st.DeviceNodes = p.nodes.Instance(g.Identity.UUID, in.Placement, "")
		}
		p.leasesIn(&st)
		if p.instanceUse != nil {
			var alone string
			st.Use, alone = p.instanceUse(g.Identity.UUID, in.ID)
			p.useOfLease(&st, alone)
		}
		out.Instances = append(out.Instances, st)
	}
	return out
}

// profile is the profile of an instance.
func (p *statusInputs) profile(g *observe.GPU, in *gpu.Instance) *lease.ProfileView {
	if g.Profiles != nil {
		if i := slices.IndexFunc(g.Profiles.GI, func(q gpu.Profile) bool { return q.ID == in.ProfileID }); i >= 0 {
			v := planner.ProfileView(p.desired, g.Identity.UUID, g.Profiles, &g.Profiles.GI[i])
			return &v
		}
	}
	return &lease.ProfileView{Name: g.Profiles.GIName(in.ProfileID)}
}

// useOfLease sets the use of an instance as that of the lease that has it alone, if it had it alone for the whole interval: others that
// have ended, and processes of no lease, did a part of it otherwise.
func (p *statusInputs) useOfLease(st *api.InstanceStatus, alone string) {
	if st.Lease == "" || st.Lease != alone || len(st.Leases) > 1 {
		return
	}
	if i := slices.IndexFunc(p.leases, func(l api.Lease) bool { return l.ID == st.Lease }); i >= 0 && ranFor(&p.leases[i], st.Use) {
		p.leases[i].Use = st.Use
	}
}

// leasesIn sets the leases of an instance and of its compute instances.
func (p *statusInputs) leasesIn(st *api.InstanceStatus) {
	for j := range p.leases {
		l := &p.leases[j]
		if l.InstanceGeneration != 0 && l.InstanceGeneration != st.Generation {
			continue
		}
		if slices.ContainsFunc(st.UUIDs, func(id string) bool { return slices.Contains(l.Devices, id) }) {
			st.Lease = l.ID
			if st.MPS != nil || len(st.Compute) > 0 {
				st.Leases = append(st.Leases, l.ID)
			}
		}
		for k := range st.Compute {
			if slices.Contains(l.Devices, st.Compute[k].UUID) {
				st.Compute[k].Lease = l.ID
			}
		}
	}
}

func (p *statusInputs) tenant(t *api.TenantSpec) api.TenantStatus {
	out := api.TenantStatus{
		Name:     t.Name,
		Priority: cmp.Or(t.Priority, "normal"),
		Members:  t.Members,
		Limits:   p.limits[t.Name],
		Grants:   []api.GrantStatus{},
	}
	if p.frozen != nil {
		out.Frozen = p.frozen(t.Name)
	}
	qualifier := func(*api.TenantSpec, *api.GrantSpec) string { return "" }
	if p.memoryQualifier != nil {
		qualifier = p.memoryQualifier
	}
	for i := range t.Grants {
		g := &t.Grants[i]
		st := api.GrantStatus{
			Name:      g.Name,
			Kind:      g.Kind(),
			Text:      grantText(g, qualifier(t, g)),
			GPUs:      []string{},
			Reserved:  g.Reserved,
			MaxLeases: maxLeases(g),
		}
		for _, id := range p.desired.Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}] {
			st.GPUs = append(st.GPUs, string(id))
		}
		if p.container != nil {
			st.Container = p.container(state.GrantKey{Tenant: t.Name, Grant: g.Name})
		}
		for j := range p.leases {
			l := &p.leases[j]
			if l.Tenant != t.Name || l.Grant != g.Name {
				continue
			}
			if l.State == api.LeaseQueued {
				st.Queued++
			} else {
				st.Leases++
			}
		}
		out.Leases += st.Leases
		out.Grants = append(out.Grants, st)
	}
	return out
}

// maxLeases is how many leases may exist at once; 0: only the GPU memory limits them.
func maxLeases(g *api.GrantSpec) int {
	if g.MaxLeases != nil {
		return *g.MaxLeases
	}
	if k := g.Kind(); k == api.ModeMIG || k == api.ModeExclusive {
		return 1
	}
	return 0
}

// grantText describes a grant. qualifier follows its GPU memory.
func grantText(g *api.GrantSpec, qualifier string) string {
	share := func(s *api.ShareSpec, of string) string {
		out := s.Share.String() + " of the " + of
		if s.Cap != nil {
			out += ", at most " + s.Cap.String()
		}
		if s.GPUMemory != nil {
			out += ", " + s.GPUMemory.Short() + qualifier
		}
		return out
	}
	switch g.Kind() {
	case api.ModeMIG:
		if g.MIG != "" {
			return "MIG " + g.MIG
		}
		words := []string{fmt.Sprintf("MIG of %d slices", g.Slices)}
		if g.GPUMemory != "" {
			words = append(words, "memory "+g.GPUMemory)
		}
		return strings.Join(append(words, g.Attributes...), ", ")
	case api.ModeTimeslice:
		if g.LowLatency() {
			return share(g.Timeslice, "time") + ", latency: low"
		}
		return share(g.Timeslice, "time")
	case api.ModeMPS:
		if g.InInstance() {
			whole := *g
			whole.MPS = nil
			return share(g.MPS, "threads (advisory)") + ", of one instance: " + grantText(&whole, "")
		}
		return share(g.MPS, "threads (advisory)")
	case api.ModeExclusive:
		if g.Exclusive == 1 {
			return "a whole GPU"
		}
		return fmt.Sprintf("%d whole GPUs", g.Exclusive)
	}
	return ""
}

// restrictTo returns what a caller may see. A member sees their tenants, the leases of these and the GPUs of their grants.
func restrictTo(s *api.Status, c *server.Caller) *api.Status {
	if c.Admin {
		return s
	}
	out := *s
	if c.ReadsAll() {
		out.Leases = c.HideCommands(s.Leases)
		return &out
	}
	mine := map[string]bool{}
	out.Tenants = nil
	for i := range s.Tenants {
		if t := &s.Tenants[i]; c.IsMember(t.Name) {
			out.Tenants = append(out.Tenants, *t)
			for _, g := range t.Grants {
				for _, id := range g.GPUs {
					mine[id] = true
				}
			}
		}
	}
	out.Leases = []api.Lease{}
	for i := range s.Leases {
		switch l := &s.Leases[i]; {
		case c.SeesLease(l.Tenant, l.UID):
			out.Leases = append(out.Leases, s.Leases[i])
		case s.Node.StatusVisible == api.StatusVisibleAll:
			out.Leases = append(out.Leases, leaseOfOthers(l))
		}
	}
	out.Leases = c.HideCommands(out.Leases)
	out.GPUs = []api.GPUStatus{}
	for i := range s.GPUs {
		g := s.GPUs[i]
		switch {
		case s.Node.StatusVisible == api.StatusVisibleAll:
			granted := g.Granted
			g = restrictGPU(g, c, out.Leases)
			g.Granted = granted
		case mine[g.UUID]:
			g = restrictGPU(g, c, out.Leases)
		default:
			continue
		}
		out.GPUs = append(out.GPUs, g)
	}
	out.Users = nil
	for _, u := range s.Users {
		if u.UID == c.UID {
			out.Users = append(out.Users, u)
		}
	}
	out.Node.Conditions = nil
	for _, cond := range s.Node.Conditions {
		if restrictCondition(&cond, c, mine) {
			out.Node.Conditions = append(out.Node.Conditions, cond)
		}
	}
	return &out
}

// leaseOfOthers is what every member sees of a lease with node.status_visible: all. It says who has what, since when and until when; not
// what they run, nor how they are isolated.
func leaseOfOthers(l *api.Lease) api.Lease {
	return api.Lease{
		ID:             l.ID,
		Generation:     l.Generation,
		Tenant:         l.Tenant,
		Grant:          l.Grant,
		Kind:           l.Kind,
		State:          l.State,
		Origin:         l.Origin,
		User:           l.User,
		UID:            l.UID,
		GPUs:           l.GPUs,
		Devices:        l.Devices,
		Share:          l.Share,
		GPUMemory:      l.GPUMemory,
		Position:       l.Position,
		ExpectedStart:  l.ExpectedStart,
		Created:        l.Created,
		Started:        l.Started,
		Expires:        l.Expires,
		MaxTime:        l.MaxTime,
		Ended:          l.Ended,
		ElapsedSeconds: l.ElapsedSeconds,
		IdleSeconds:    l.IdleSeconds,
	}
}

// restrictCondition reports whether a member may see a condition, and removes what they may not see. Members may see the
// conditions of their tenants. Of the node and of their GPUs they see only kinds whose messages name no user, process or
// lease: a new kind is hidden until it is added here.
func restrictCondition(cond *api.Condition, c *server.Caller, mine map[string]bool) bool {
	if k := cond.Acknowledged; k != nil {
		cond.Acknowledged = &api.Acknowledgement{At: k.At, Until: k.Until}
	}
	switch {
	case cond.Tenant != "":
		return c.IsMember(cond.Tenant) && (cond.GPU == "" || mine[cond.GPU])
	case cond.GPU == "":
		return slices.Contains([]string{"driver", "names", "not-enforced"}, cond.Kind)
	case cond.Kind == "held":
		cond.Message, cond.Hint = "held: "+heldReasonForMembers, ""
	}
	return mine[cond.GPU] && slices.Contains([]string{"gpu", "health", "held", "mps"}, cond.Kind)
}

// restrictGPU hides other tenants' processes, instances' leases and grants. leases are those that the caller may see.
func restrictGPU(g api.GPUStatus, c *server.Caller, leases []api.Lease) api.GPUStatus {
	restrictClosures(&g, c)
	if g.Cordoned != nil {
		g.Cordoned = &api.Cordon{Since: g.Cordoned.Since}
	}
	all := g.Processes
	g.Processes = nil
	shown := map[string]bool{}
	var own []api.Lease
	for i := range leases {
		shown[leases[i].ID] = true
		if c.SeesLease(leases[i].Tenant, leases[i].UID) {
			own = append(own, leases[i])
		}
	}
	for _, p := range all {
		if p.Tenant != "" && c.IsMember(p.Tenant) {
			g.Processes = append(g.Processes, p)
		}
	}
	grants := g.Granted
	g.Granted = nil
	for _, m := range grants {
		if c.IsMember(m.Tenant) {
			g.Granted = append(g.Granted, m)
		}
	}
	if g.MIG != nil {
		m := *g.MIG
		m.Instances = restrictInstances(m.Instances, shown, own)
		g.MIG = &m
	}
	return g
}
