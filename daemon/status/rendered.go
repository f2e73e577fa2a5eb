package status

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/version"
	"github.com/gpushare/gpushare/quota"
)

// renderCache keeps the rendered status. It is rendered on a request after a change, and served as bytes until the next one.
type renderCache struct {
	last atomic.Pointer[renderedStatus]

	mu locks.Mutex[locks.Rendering] // one request renders, the others wait for it
}

// renderedStatus is one status with its JSON for each kind of viewer.
type renderedStatus struct {
	version uint64 // see report.Reporter.Version
	status  *api.Status
	all     []byte // for administrators

	mu         locks.Mutex[locks.Leaf] // protects restricted
	restricted map[string][]byte       // by what the viewer may read: see keyOf
}

// upToDate returns the rendered status if nothing has changed since it was read, else nil. A status that is being rendered does
// not count: a request that comes now may have waited for a change that only that one shows.
func (c *renderCache) upToDate(version uint64) *renderedStatus {
	if p := c.last.Load(); p != nil && p.version == version {
		return p
	}
	return nil
}

// current returns the rendered status, and renders it first if something has changed.
func (c *renderCache) current(version func() uint64, render func() *api.Status) *renderedStatus {
	if p := c.upToDate(version()); p != nil {
		return p
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := version() // Before reading: after a change during it the next request renders again.
	if p := c.upToDate(now); p != nil {
		return p
	}
	p := &renderedStatus{version: now, status: render(), restricted: map[string][]byte{}}
	p.all = encode(p.status)
	c.last.Store(p)
	return p
}

func (v *Viewer) currentStatus() *renderedStatus {
	return v.rendered.current(v.version, func() *api.Status {
		v.Counters.Renders.Add(1)
		return v.inputs().render()
	})
}

// version differs when something has changed, or a control daemon of MPS has ended: it is not shown as running until that is observed.
func (v *Viewer) version() uint64 {
	const bits = 16
	return v.Version()<<bits | v.endedMPS()&(1<<bits-1)
}

// encode returns JSON with a line end. The types of package api always encode.
func encode(s *api.Status) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("internal error: the status does not encode: " + err.Error())
	}
	return append(b, '\n')
}

func (p *renderedStatus) bytes(c *server.Caller) []byte {
	if c.Admin {
		return p.all
	}
	key := p.keyOf(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := p.restricted[key]
	if !ok {
		b = encode(restrictTo(p.status, c))
		p.restricted[key] = b
	}
	return b
}

// keyOf is the same for callers who see the same: what a user has and the whole commands of their leases are for them alone.
// No tenant's name has the characters * and =.
func (p *renderedStatus) keyOf(c *server.Caller) string {
	key := strings.Join(c.Tenants, " ")
	if c.ReadsAll() {
		key = "*"
	}
	if slices.ContainsFunc(p.status.Users, func(u api.UserStatus) bool { return u.UID == c.UID }) ||
		slices.ContainsFunc(p.status.Leases, func(l api.Lease) bool { return l.UID == c.UID }) {
		key = "uid=" + strconv.Itoa(c.UID) + " " + key
	}
	return key
}

// ReadSensors reads the sensors of the GPUs that are older than a second, for someone who looks now.
func (v *Viewer) ReadSensors(ctx context.Context) { v.Managers.Health.ReadSensors(ctx) }

// GetStatus returns the status. It reads no GPU, unless the caller asks for its sensors of now.
func (v *Viewer) GetStatus(c *server.Call) error {
	if c.Flag("sensors") {
		v.ReadSensors(c.R.Context())
	}
	return c.ReplyBytes(http.StatusOK, v.currentStatus().bytes(c.Caller))
}

// StatusFor returns what a caller may read of the status. It must not be changed.
func (v *Viewer) StatusFor(c *server.Caller) *api.Status {
	return restrictTo(v.currentStatus().status, c)
}

// inputs collects what the status is rendered from.
func (v *Viewer) inputs() *statusInputs {
	v.Managers.Converge.UpdateShares() // The leases may have changed since the last pass of the converger.
	want := v.State.Desired()
	p := &statusInputs{
		host:       v.Host,
		adapter:    devicepolicy.AdapterText(v.Port.Info()),
		now:        v.Now(),
		node:       withoutEndedMPS(v.Samples.Overlay(v.Observer.Last())),
		desired:    want,
		leases:     v.Table.List(),
		granted:    v.Table.Granted(),
		users:      v.users(),
		conditions: v.Managers.Acknowledge.Annotate(v.Conditions.List()),
		limits:     map[string][]api.LimitStatus{},
		command:    procfs.Name,
		servesMPS:  attribution.IsServingMPS,
		sampled:    v.Samples.Has,
	}
	p.nodes = v.Policy.NodeNames(v.Observer.Last())
	st := v.State.Stored()
	pending := state.OpenSteps(st)
	p.foreign = func(id gpu.UUID, in *gpu.Instance) bool {
		return !v.State.ManagesInstance(id, in) && !state.IsPending(pending, id, in.Placement)
	}
	p.stored, p.closures = *st, planner.Closures(v.State, p.node, p.now)
	p.instanceUse = v.Managers.InstanceUse.Of
	p.timeSlices, p.health, p.frozen = v.Managers.Enforce.TimeSlices, v.Managers.Health.Status, v.Managers.Enforce.FrozenTenant
	p.sensors = v.Managers.Health.Sensors
	p.instanceRecord = func(id gpu.UUID, at gpu.Placement) *store.InstanceRecord {
		a := st.Achieved[id]
		return state.InstanceRecordOf(&a, at)
	}
	p.removedAt = func(id gpu.UUID, m *store.InstanceRecord) (time.Time, bool) {
		since, ok := v.Managers.Instances.IdleSince(id, m.Placement, m.Generation)
		return since.Add(want.Keep(id)), ok
	}
	p.container = func(k state.GrantKey) *api.ContainerUse { return v.containerUse(p.node.Slices, k) }
	p.memoryQualifier = func(t *api.TenantSpec, g *api.GrantSpec) string { return memoryQualifier(v.weakestChoice(want, t, g)) }
	shown := 0
	for i := range p.node.GPUs {
		shown += len(p.node.GPUs[i].Processes)
	}
	p.leaseOf = v.Attribution.LeaseLookup(shown)
	p.starting = v.State.Starting()
	if ch := v.State.Changing(); ch != nil {
		p.changing = ch.Operation
	}
	if want.Spec != nil {
		info := v.Port.Info()
		for i := range want.Spec.Tenants {
			t := &want.Spec.Tenants[i]
			p.limits[t.Name] = append(limitsOf(t, want.Enforcing(), info, p.node.Slices), v.loginLimitStatus(want, t)...)
		}
	}
	for i := range p.leases {
		if l := &p.leases[i]; l.User == names.UIDLabel(l.UID) {
			l.User = v.Identities.Names.UserName(l.UID) // The name may be known by now.
		}
		v.measure(&p.leases[i])
	}
	return p
}

// measure adds what was measured to a lease.
func (v *Viewer) measure(l *api.Lease) {
	if l.State == api.LeaseQueued {
		return
	}
	v.Managers.Account.Fill(l)
	v.setFreeze(l)
	v.Managers.Enforce.Fill(l, v.Freezer != nil && v.State.Desired().Enforcing())
	m := v.Samples.Lease(l.ID)
	l.Processes = m.Processes
	if m.Processes == 0 && v.clientsOf(l) > 0 {
		m.Unknown = true // The driver lists only the server of MPS, with the memory of all clients.
	}
	switch {
	case l.GPUMemory != nil:
		l.GPUMemory.Used, l.GPUMemory.Stage, l.GPUMemory.Unknown = m.Memory, m.Stage, m.Unknown
		if !m.LastKnown.IsZero() {
			l.GPUMemory.LastKnown = &m.LastKnown
		}
		if now, ok := v.Table.Get(l.ID); ok && l.GPUMemory.Limit > 0 {
			c := v.Managers.Memory.Choice(&now)
			l.GPUMemory.Backend, l.GPUMemory.Hard, l.GPUMemory.Reason = string(c.Backend), c.Hard, c.Reason
			l.GPUMemory.Advisory = c.Advisory() || c.Backend == quota.BackendMPS && l.GPUMemory.Unknown
			if why := v.whyUnmeasured(l, c); why != "" {
				l.GPUMemory.Reason = why
			}
		}
	case m.Memory > 0:
		l.GPUMemory = &api.LeaseMemory{Used: m.Memory, Backend: "none"}
		if l.Kind == api.ModeMIG {
			l.GPUMemory.Backend = "mig"
		}
	}
}

// GetInfo returns the versions and the caller.
func (v *Viewer) GetInfo(c *server.Call) error {
	out := api.Info{
		API: "v1", Version: version.Version, Features: api.Features(), Adapter: v.Port.Info().Adapter,
		Caller: api.Caller{UID: c.Caller.UID, User: c.Caller.Name, Role: c.Caller.Role(), Tenants: c.Caller.Tenants},
	}
	if n := v.Observer.Last(); n.DriverErr == nil {
		out.Driver = n.Driver.DriverVersion
	}
	return c.Reply(http.StatusOK, out)
}
