package attribution

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// Hierarchy is the cgroup hierarchy of the slices; ok is false if there is none.
func (attr *Attribution) Hierarchy() (h cgroup.Hierarchy, ok bool) {
	at := attr.Port.Abilities().Hierarchy
	if at == nil {
		return h, false
	}
	return *at, true
}

// SliceUse returns what each slice uses and the leases in it, so that a plan can name what it would disturb.
func (attr *Attribution) SliceUse(node *observe.Node) map[cgroup.SliceName]isolation.Use {
	out := map[cgroup.SliceName]isolation.Use{}
	for _, l := range attr.Table.Live() {
		slice := state.SliceOf(&l)
		for _, name := range []cgroup.SliceName{{Tenant: slice.Tenant}, slice} {
			u := out[name]
			u.Leases = append(u.Leases, l.ID)
			out[name] = u
		}
	}
	h, ok := attr.Hierarchy()
	if !ok {
		return out
	}
	for i := range node.Slices {
		if s := &node.Slices[i]; s.Name.Tenant != "" {
			out[s.Name] = attr.useOf(h, s, out[s.Name])
		}
	}
	return out
}

// useOf adds the resources that are in use. What cannot be read counts as not used: the kernel enforces the limit all
// the same, and the slice may have been removed since it was observed.
func (attr *Attribution) useOf(h cgroup.Hierarchy, s *cgroup.SliceState, u isolation.Use) isolation.Use {
	ps, err := h.Processes(s.Path)
	if err != nil {
		return u
	}
	for _, p := range ps {
		if _, attributed := attr.LeaseOf(p.PID); !attributed {
			u.Unattributed = append(u.Unattributed, step.ProcessOf(p.PID, procfs.Name(p.PID)))
		}
	}
	in, err := h.InUse(s.Path)
	if err != nil {
		attr.Log.Warn("cannot read what a slice uses", "slice", s.Name.String(), "error", err)
	}
	if in.Memory != nil {
		u.Memory = *in.Memory
	}
	if in.Tasks != nil {
		u.Tasks = *in.Tasks
	}
	if in.CPU != nil {
		u.CPU = attr.rates.record(s.Path, *in.CPU, attr.Now())
	}
	open, err := cgroup.OpenDevices(ps)
	if err != nil {
		attr.Log.Warn("the list of devices that are open in a slice is not complete", "slice", s.Name.String(), "error", err)
	}
	u.Devices = granted(open, s) // Those that were found are in use all the same.
	return u
}

// granted returns the open devices that the slice allows. A device that is open and not allowed is not kept.
func granted(open []cgroup.DeviceRule, s *cgroup.SliceState) []cgroup.DeviceRule {
	return slices.DeleteFunc(open, func(r cgroup.DeviceRule) bool {
		return !slices.ContainsFunc(s.Devices, func(o cgroup.DeviceRule) bool {
			return o.Type == r.Type && o.Major == r.Major && o.Minor == r.Minor
		})
	})
}

// rates are the CPU rates of slices, from their usage at two moments.
type rates struct {
	mu      locks.Mutex[locks.Leaf] // guards all
	bySlice map[string]rate
}

type rate struct {
	at      time.Time
	used    time.Duration
	percent float64 // of one CPU, between the two moments before
}

// Moments that are closer give no useful rate; older ones say nothing about the present.
const (
	rateMinInterval = time.Second
	rateMaxInterval = 2 * time.Minute
)

// record stores a moment and returns the percentage of one CPU since the one before; 0 while it is unknown.
func (r *rates) record(path string, used time.Duration, now time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bySlice == nil {
		r.bySlice = map[string]rate{}
	}
	for p, old := range r.bySlice {
		if now.Sub(old.at) > rateMaxInterval {
			delete(r.bySlice, p)
		}
	}
	old, ok := r.bySlice[path]
	elapsed := now.Sub(old.at)
	switch {
	case !ok || used < old.used: // The counter is lower for a new slice of the same name.
		r.bySlice[path] = rate{at: now, used: used}
		return 0
	case elapsed < rateMinInterval:
		return old.percent
	}
	next := rate{at: now, used: used, percent: 100 * float64(used-old.used) / float64(elapsed)}
	r.bySlice[path] = next
	return next.percent
}

// RecordRates records the CPU rates of slices with a CPU quota; no plan needs the others.
func (attr *Attribution) RecordRates(node *observe.Node) {
	h, ok := attr.Hierarchy()
	if !ok {
		return
	}
	for i := range node.Slices {
		s := &node.Slices[i]
		if s.Limits.CPUQuota == nil {
			continue
		}
		if in, err := h.InUse(s.Path); err == nil && in.CPU != nil {
			attr.rates.record(s.Path, *in.CPU, attr.Now())
		}
	}
}

// InPlaceReason says in a message why the processes of a lease in place are not isolated.
func InPlaceReason(l *lease.Lease) string {
	switch {
	case l.Unit != "":
		return "it stays in " + l.Unit
	case l.Cgroup != "":
		return "it stays in its cgroup"
	}
	return "the process stays where it is"
}
