package daemon

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/version"
)

// page is the rendered status. It is made when somebody asks and something changed, and served as bytes until then.
type page struct {
	last atomic.Pointer[printed]

	mu sync.Mutex // one renders, the others wait for it
}

// printed is one status with its text for each kind of eye.
type printed struct {
	status *api.Status
	all    []byte // for those who see everything

	mu     sync.Mutex        // guards narrow
	narrow map[string][]byte // by the tenants that the eye is a member of
}

func (d *Viewer) currentPage() *printed {
	if p := d.page.last.Load(); p != nil && !d.isStale() {
		return p
	}
	d.page.mu.Lock()
	defer d.page.mu.Unlock()
	if p := d.page.last.Load(); p != nil && !d.isStale() {
		return p
	}
	d.fresh() // Before the reading: what changes during it makes the next reader look again.
	p := &printed{status: d.picture().render(), narrow: map[string][]byte{}}
	p.all = encode(p.status)
	d.page.last.Store(p)
	d.Counters.renders.Add(1)
	return p
}

// encode gives JSON with a line end. The types are ours and always encode.
func encode(s *api.Status) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("internal error: the status does not encode: " + err.Error())
	}
	return append(b, '\n')
}

func (p *printed) bytes(c *caller) []byte {
	if c.admin || c.observer {
		return p.all
	}
	key := strings.Join(c.tenants, " ")
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := p.narrow[key]
	if !ok {
		b = encode(narrowTo(p.status, c))
		p.narrow[key] = b
	}
	return b
}

func (d *Viewer) getStatus(c *call) error {
	return c.replyBytes(http.StatusOK, d.currentPage().bytes(c.caller))
}

// picture gathers what status is made of.
func (d *Viewer) picture() *picture {
	want := d.state.Desired()
	p := &picture{
		host: d.host, adapter: adapterText(d.port.Info()), now: d.Now(), node: d.samples.Over(d.observer.Last()), desired: want,
		leases: d.table.List(), granted: d.table.Granted(), held: d.state.held(), busyGPUs: map[gpu.UUID]bool{},
		conditions: d.Conditions.list(), limits: map[string][]api.LimitStatus{},
		command: procfs.Name, servesMPS: isServingMPS,
	}
	st := d.state.Kept()
	making := stepsUnderWay(st)
	p.foreign = func(id gpu.UUID, in *gpu.Instance) bool {
		return !d.state.ours(id, in) && !beingMade(making, id, in.Placement)
	}
	p.times = st.Times
	p.mark = func(id gpu.UUID, at gpu.Placement) *store.Mark {
		a := st.Achieved[id]
		return markOf(&a, at)
	}
	p.goes = func(id gpu.UUID, m *store.Mark) (time.Time, bool) {
		since, ok := d.told.change.idleSince(id, m.Placement, m.Generation)
		return since.Add(want.keep(id)), ok
	}
	p.container = func(k grantKey) *api.ContainerUse { return d.containerUse(p.node.Slices, k) }
	shown := 0
	for i := range p.node.GPUs {
		shown += len(p.node.GPUs[i].Processes)
	}
	p.owner = d.attribution.owners(shown)
	if ch := d.state.Changing(); ch != nil {
		p.changing, p.busyGPUs = ch.operation, ch.gpus
	}
	if want.spec != nil {
		info := d.port.Info()
		for i := range want.spec.Tenants {
			t := &want.spec.Tenants[i]
			p.limits[t.Name] = append(limitsOf(t, want.enforcing(), info, p.node.Slices), d.loginLimitStatus(want, t)...)
		}
	}
	for i := range p.leases {
		if l := &p.leases[i]; l.User == names.Nameless(l.UID) {
			l.User = d.rosters.names.UserName(l.UID) // It may be known by now.
		}
		d.measure(&p.leases[i])
	}
	return p
}

// measure adds what was seen of a lease to what was promised.
func (d *Viewer) measure(l *api.Lease) {
	if l.State == api.LeaseQueued {
		return
	}
	d.told.enforce.fill(l, d.gate != nil && d.state.Desired().enforcing())
	if l.Share != nil && l.Kind == api.ModeMPS {
		l.Share.Gated = d.state.Desired().enforcing() // By the MPS server, for every process that joined it.
	}
	m := d.samples.Lease(l.ID)
	l.Processes = m.Processes
	switch {
	case l.Memory != nil:
		l.Memory.Used, l.Memory.Stage = m.Memory, m.Stage
	case m.Memory > 0:
		l.Memory = &api.LeaseMemory{Used: m.Memory, Backend: "none"}
		if l.Kind == api.ModeMIG {
			l.Memory.Backend = "mig"
		}
	}
}

func (d *Viewer) getInfo(c *call) error {
	out := api.Info{
		API: "v1", Version: version.Version, Features: api.Features(), Adapter: d.port.Info().Adapter,
		You: api.Caller{UID: c.caller.uid, User: c.caller.name, Role: c.caller.role(), Tenants: c.caller.tenants},
	}
	if n := d.observer.Last(); n.DriverErr == nil {
		out.Driver = n.Driver.DriverVersion
	}
	return c.reply(http.StatusOK, out)
}

// getEvents streams events from now on, with a first line that says so.
func (d *Viewer) getEvents(c *call) error {
	sub, stop := d.Events.subscribe()
	defer stop()
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	c.w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(c.w)
	_ = flush.Flush() // A caller that went away is seen by the context.
	out := json.NewEncoder(c.w)
	// A line now and then lets both ends see that the other is gone.
	alive := time.NewTicker(time.Minute)
	defer alive.Stop()
	for {
		select {
		case e := <-sub.c:
			if e.Tenant != "" && !c.caller.sees(e.Tenant) || e.Tenant == "" && e.Kind != "gap" && !c.caller.admin && !c.caller.observer {
				continue
			}
			startPart(c.w)
			if out.Encode(e) != nil {
				return nil
			}
		case <-alive.C:
			startPart(c.w)
			if out.Encode(api.Event{At: d.Now(), Kind: "alive"}) != nil {
				return nil
			}
		case <-c.ctx().Done():
			return nil
		}
		_ = flush.Flush()
	}
}
