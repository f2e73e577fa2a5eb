package metrics

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
)

// Snapshot is what the metrics of one answer are computed from.
type Snapshot struct {
	Version string
	Status  *api.Status
	Usage   []Usage
	Uses    []api.IdleUse
	// XIDs and Activity are for administrators and observers; nil for others.
	XIDs     []report.XIDCount
	Activity *Activity
}

// Activity is what gpushared did since it started.
type Activity struct {
	Converges, Drifts, Steps, Freezes        uint64
	Messages, Writes, Timeouts, WorkerStarts uint64
	Reading                                  time.Duration // inside the driver
}

// GPU states, in the order of the API.
var states = []string{"ok", "changing", "held", "cordoned", "unhealthy", "drained", "mps-down", "lost", "stuck", "unreadable"}

// Describe and Collect make a snapshot a prometheus.Collector.
func (s *Snapshot) Describe(out chan<- *prometheus.Desc) {
	for _, m := range catalog {
		out <- m.desc
	}
}

// Collect sends all metrics.
func (s *Snapshot) Collect(out chan<- prometheus.Metric) {
	c := &collection{out: out, seen: map[string]bool{}, index: map[string]string{}}
	for i := range s.Status.GPUs {
		g := &s.Status.GPUs[i]
		c.index[g.UUID] = indexLabel(g)
	}
	c.node(s)
	for i := range s.Status.GPUs {
		c.gpu(&s.Status.GPUs[i])
	}
	for i := range s.XIDs {
		x := &s.XIDs[i]
		labels := []string{c.index[string(x.GPU)], string(x.GPU), strconv.FormatUint(x.XID, 10)}
		c.add(gpuXIDs, float64(x.Count), labels...)
		c.add(gpuLastXID, seconds(x.Last), labels...)
	}
	c.tenants(s.Status)
	c.leases(s.Status)
	for i := range s.Usage {
		u := &s.Usage[i]
		labels := []string{c.index[string(u.GPU)], string(u.GPU), u.Tenant, u.User}
		c.addTime(usedBusy, u.Busy, labels...)
		c.addTime(usedOccupancy, u.Occupancy, labels...)
	}
	c.uses(s.Uses)
	if s.Activity != nil {
		c.activity(s.Activity)
	}
}

// collection sends metrics, each at most once: a second one with the same labels would make the whole answer invalid.
type collection struct {
	out   chan<- prometheus.Metric
	seen  map[string]bool
	index map[string]string // of GPUs, by UUID
}

func (c *collection) add(m *Metric, value float64, labels ...string) {
	key := m.Name
	for i := range labels {
		labels[i] = strings.ToValidUTF8(labels[i], "\uFFFD")
		key += "\x00" + labels[i]
	}
	if c.seen[key] {
		return
	}
	c.seen[key] = true
	metric, err := prometheus.NewConstMetric(m.desc, m.Type, value, labels...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(m.desc, err)
	}
	c.out <- metric
}

func (c *collection) addBool(m *Metric, value bool, labels ...string) {
	c.add(m, one(value), labels...)
}

// addPercent adds a percentage as a ratio, if it is known.
func (c *collection) addPercent(m *Metric, value *float64, labels ...string) {
	if value != nil {
		c.add(m, *value/100, labels...)
	}
}

func (c *collection) addTime(m *Metric, value *time.Duration, labels ...string) {
	if value != nil {
		c.add(m, value.Seconds(), labels...)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func (c *collection) node(s *Snapshot) {
	n := &s.Status.Node
	c.add(buildInfo, 1, s.Version, runtime.Version())
	c.add(nodeInfo, 1, n.Driver, n.Adapter, n.Enforce)
	c.addBool(enforcing, n.Enforce == "on")
	c.add(generation, float64(n.Generation))
	c.addBool(operation, n.Operation != "")
	type about struct {
		kind, subject string
		acknowledged  bool
	}
	count := map[about]int{}
	for i := range n.Conditions {
		cond := &n.Conditions[i]
		subject := "node"
		switch {
		case cond.GPU != "":
			subject = cond.GPU
		case cond.Tenant != "":
			subject = cond.Tenant
		}
		count[about{cond.Kind, subject, cond.Acknowledged != nil}]++
	}
	for a, k := range count {
		c.add(condition, float64(k), a.kind, a.subject, strconv.FormatBool(a.acknowledged))
	}
}

func (c *collection) gpu(g *api.GPUStatus) {
	index := c.index[g.UUID]
	c.add(gpuInfo, 1, index, g.UUID, g.PCI, g.Model, g.Mode, g.Owner)
	for _, state := range states {
		c.addBool(gpuState, g.State == state, index, g.UUID, state)
	}
	c.closed(g)
	for i := range g.Granted {
		m := &g.Granted[i]
		c.add(gpuMemoryGranted, float64(m.Bytes), index, g.UUID, m.Tenant, m.Grant)
	}
	if g.Memory.Total > 0 {
		c.add(gpuMemoryTotal, float64(g.Memory.Total), index, g.UUID)
	}
	if g.ReadAt != nil {
		c.add(gpuRead, seconds(*g.ReadAt), index, g.UUID)
	}
	// A GPU that does not answer has its last reading in the status. As a metric that would be an old value with a new time.
	answers := g.ReadAt != nil && !slices.Contains([]string{"lost", "stuck", "unreadable"}, g.State)
	c.health(g, answers)
	if !answers {
		return
	}
	c.sensors(g)
	if g.Utilization != nil {
		c.add(gpuUtilization, float64(*g.Utilization)/100, index, g.UUID)
	}
	c.add(gpuMemoryUsed, float64(g.Memory.Used), index, g.UUID)
	c.add(gpuMemoryFree, float64(g.Memory.Free), index, g.UUID)
	if g.Memory.Reserved > 0 {
		c.add(gpuMemoryReserve, float64(g.Memory.Reserved), index, g.UUID)
	}
	if g.Unattributed != nil {
		c.add(gpuMemoryNoOwner, float64(*g.Unattributed), index, g.UUID)
	}
	var attributed, others int
	for i := range g.Processes {
		switch p := &g.Processes[i]; {
		case p.Kind == "mps-server":
		case p.Lease != "":
			attributed++
		default:
			others++
		}
	}
	c.add(gpuProcesses, float64(attributed), index, g.UUID, "true")
	c.add(gpuProcesses, float64(others), index, g.UUID, "false")
	if t := g.TimeSlices; t != nil {
		c.addBool(slicesEnforced, t.Enforced, index, g.UUID)
		c.addBool(slicesContended, t.Contended, index, g.UUID)
		c.addPercent(slicesIdle, t.IdleWhileWaiting, index, g.UUID)
	}
	if g.MPS != nil {
		c.mps(g.MPS, index, g.UUID, g.UUID)
	}
	if g.MIG != nil {
		c.addBool(migEnabled, g.MIG.Enabled, index, g.UUID)
		for i := range g.MIG.Instances {
			c.instance(g, &g.MIG.Instances[i])
		}
	}
}

// closed has the reasons why all of a GPU takes no lease.
func (c *collection) closed(g *api.GPUStatus) {
	for i := range g.Closures {
		if k := &g.Closures[i]; k.Instance == nil && k.Tenant == "" {
			c.add(gpuClosed, 1, c.index[g.UUID], g.UUID, k.Kind)
		}
	}
}

// indexLabel is the index of a GPU; empty if it has none, because it is lost or missing and another GPU has its index.
func indexLabel(g *api.GPUStatus) string {
	if g.Index < 0 {
		return ""
	}
	return strconv.Itoa(g.Index)
}

// instance adds a series for each MIG device of an instance: for its only one, or for each of its compute instances. One without a
// device, an orphan, has only its info.
func (c *collection) instance(g *api.GPUStatus, in *api.InstanceStatus) {
	devices := slices.Clone(in.Compute)
	if len(devices) == 0 {
		for _, id := range in.UUIDs {
			devices = append(devices, api.ComputeStatus{UUID: id, Lease: in.Lease})
		}
	}
	if len(devices) == 0 {
		devices = []api.ComputeStatus{{}}
	}
	index := c.index[g.UUID]
	for _, d := range devices {
		c.add(
			instanceInfo, 1, index, g.UUID, d.UUID, strconv.FormatUint(uint64(in.ID), 10), in.Profile, d.Profile,
			strconv.FormatUint(uint64(in.Placement.Start), 10), strconv.FormatBool(in.Foreign),
		)
		if d.UUID == "" {
			continue
		}
		if in.Memory.Total > 0 {
			c.add(instanceTotal, float64(in.Memory.Total), index, g.UUID, d.UUID)
			c.add(instanceUsed, float64(in.Memory.Used), index, g.UUID, d.UUID)
		}
		if u := in.Use; u != nil {
			c.addPercent(instanceBusy, u.Busy, index, g.UUID, d.UUID)
			c.addPercent(instanceSMs, u.Multiprocessors, index, g.UUID, d.UUID)
			c.addPercent(instanceBandwidth, u.MemoryBandwidth, index, g.UUID, d.UUID)
		}
		c.addBool(instanceLeased, d.Lease != "", index, g.UUID, d.UUID)
		if in.MPS != nil {
			c.mps(in.MPS, index, g.UUID, d.UUID)
		}
	}
}

func (c *collection) mps(m *api.MPSStatus, labels ...string) {
	running := m.State == "running"
	c.addBool(mpsUp, running, labels...)
	if running {
		c.add(mpsClients, float64(m.Clients), labels...)
	}
	if m.MaxClients > 0 {
		c.add(mpsMost, float64(m.MaxClients), labels...)
	}
	c.add(mpsRestarts, float64(m.Restarts), labels...)
	c.addBool(mpsDrained, m.Drained != nil, labels...)
}

func (c *collection) tenants(s *api.Status) {
	for i := range s.Tenants {
		t := &s.Tenants[i]
		c.add(tenantInfo, 1, t.Name, t.Priority)
		c.addBool(tenantFrozen, t.Frozen != nil, t.Name)
		for j := range t.Limits {
			c.addBool(limitEnforced, t.Limits[j].InForce != "", t.Name, t.Limits[j].Name)
		}
		for j := range t.Grants {
			g := &t.Grants[j]
			c.add(grantLeases, float64(g.Leases), t.Name, g.Name, g.Kind)
			c.add(grantQueued, float64(g.Queued), t.Name, g.Name)
			if g.MaxLeases > 0 {
				c.add(grantMost, float64(g.MaxLeases), t.Name, g.Name)
			}
		}
	}
	for i := range s.Users {
		u := &s.Users[i]
		c.add(userLeases, float64(u.Leases), u.User)
		c.add(userGranted, float64(u.GPUMemory.Granted), u.User)
		if u.MaxLeases > 0 {
			c.add(userMost, float64(u.MaxLeases), u.User)
		}
		if u.GPUMemory.Limit > 0 {
			c.add(userLimit, float64(u.GPUMemory.Limit), u.User)
		}
	}
}

func (c *collection) leases(s *api.Status) {
	shares, grants := map[shareKey]*shareSum{}, map[grantKey]*grantSum{}
	for i := range s.Leases {
		l := &s.Leases[i]
		key := grantKey{l.Tenant, l.Grant}
		sum := grants[key]
		if sum == nil {
			sum = &grantSum{backends: map[backendKey]int{}}
			grants[key] = sum
		}
		sum.add(l)
		gpus := l.GPUs
		if len(gpus) == 0 {
			gpus = []string{""}
		}
		for j, id := range gpus {
			device := id
			if j < len(l.Devices) {
				device = l.Devices[j]
			}
			job, account := engineOf(l)
			c.add(leaseInfo, 1, l.ID, l.Tenant, l.Grant, l.Kind, l.State, l.Origin, l.User, c.index[id], id, device, job, account)
			if l.Share == nil || l.State == api.LeaseQueued || id == "" {
				continue
			}
			key := shareKey{id, device, l.Tenant, l.Grant}
			if shares[key] == nil {
				shares[key] = &shareSum{enforced: true}
			}
			shares[key].add(l.Share)
		}
	}
	for k, sum := range shares {
		labels := []string{c.index[k.gpu], k.gpu, k.device, k.tenant, k.grant}
		c.addPercent(shareEntitled, &sum.entitled, labels...)
		c.addPercent(shareDue, sum.due, labels...)
		c.addPercent(shareBusy, sum.busy, labels...)
		c.addPercent(shareOccupied, sum.occupancy, labels...)
		c.addBool(shareEnforced, sum.enforced, labels...)
		if sum.met != nil {
			c.addBool(shareMet, *sum.met, labels...)
		}
	}
	for k, sum := range grants {
		c.grant(k, sum)
	}
}

func (c *collection) grant(k grantKey, sum *grantSum) {
	if sum.oldest != nil {
		c.add(grantOldest, seconds(*sum.oldest), k.tenant, k.grant)
	}
	if sum.live == 0 {
		return
	}
	if sum.measured && !sum.unknown {
		c.add(memoryUsed, float64(sum.used), k.tenant, k.grant)
	}
	if sum.limit > 0 {
		c.add(memoryLimit, float64(sum.limit), k.tenant, k.grant)
	}
	for b, n := range sum.backends {
		c.add(memoryBackend, float64(n), k.tenant, k.grant, b.name, strconv.FormatBool(b.hard))
	}
	c.add(notIsolated, float64(sum.notIsolated), k.tenant, k.grant)
	c.add(frozenLeases, float64(sum.frozen), k.tenant, k.grant)
}

func (c *collection) activity(a *Activity) {
	c.add(converges, float64(a.Converges))
	c.add(drifts, float64(a.Drifts))
	c.add(steps, float64(a.Steps))
	c.add(freezes, float64(a.Freezes))
	c.add(messages, float64(a.Messages))
	c.add(writes, float64(a.Writes))
	c.add(readingTime, a.Reading.Seconds())
	c.add(timeouts, float64(a.Timeouts))
	c.add(workerStarts, float64(a.WorkerStarts))
}

// Usage is what the leases of a user used of a GPU since gpushared started. A time that was never measured is nil.
type Usage struct {
	GPU             gpu.UUID
	Tenant, User    string
	Busy, Occupancy *time.Duration
}

// engineOf are the engine's key and account of a lease; empty if no engine requested it.
func engineOf(l *api.Lease) (job, account string) {
	if l.Engine == nil {
		return "", ""
	}
	return l.Engine.Key, l.Engine.Account
}
