package instanceuse

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
)

// occupants are the leases of an instance, and the processes in it that are in no lease, at one reading.
type occupants struct {
	leases []lease.Lease
	others bool
	names  []string // of all of them, in order
	// changed: they were others at a reading since the last one with a result.
	changed bool
}

// account reports to the account what the leases of the instances of a GPU used. uses has results of some of them. It returns the leases
// that had one of these alone for the whole interval.
func (w *Watch) account(g *observe.GPU, uses []gpu.InstanceUse, at time.Time) (only map[uint32]string) {
	only = map[uint32]string{}
	if w.occupied == nil {
		w.occupied = map[key]occupants{}
	}
	for i := range g.Instances {
		k := key{g.Identity.UUID, g.Instances[i].ID}
		was, before := w.occupied[k]
		now := w.occupantsOf(g, &g.Instances[i])
		now.changed = before && (was.changed || !slices.Equal(was.names, now.names))
		if j := slices.IndexFunc(uses, func(u gpu.InstanceUse) bool { return u.GI == k.gi }); j >= 0 {
			alone := before && !now.changed && len(now.leases) == 1 && !now.others && !w.endedIn(&g.Instances[i], uses[j].Length)
			if alone && w.ranFor(&now.leases[0], uses[j].Length) {
				only[k.gi] = now.leases[0].ID
			}
			w.record(k.gpu, now.leases, &uses[j], alone, at)
			now.changed = false
		}
		w.occupied[k] = now
	}
	return only
}

// ranFor reports whether a lease runs for d: a part of what was counted was of what was there before, if not.
func (w *Watch) ranFor(l *lease.Lease, d time.Duration) bool {
	return l.State == lease.Running && l.Started != nil && !l.Started.After(w.Now().Add(-d))
}

// record reports what the leases of an instance used, as far as that is known: all of it if one lease had the instance alone, all the
// time, and nothing if nothing ran. Of several leases the counters say no more.
func (w *Watch) record(id gpu.UUID, leases []lease.Lease, u *gpu.InstanceUse, alone bool, at time.Time) {
	if u.Busy == nil || w.Recorder == nil {
		return
	}
	from, part := at.Add(-u.Length), *u.Busy/100
	if part > 0 && !alone {
		return
	}
	for j := range leases {
		l := &leases[j]
		if !w.ranFor(l, u.Length) {
			continue
		}
		std := leastBusy * u.Length.Seconds()
		w.Recorder.Record(usage.Interval{
			Subject: usage.Subject{
				Lease:      l.ID,
				Generation: l.Generation,
				Tenant:     l.Terms.Tenant,
				Grant:      l.Terms.Spec.Name,
				User:       l.User,
				GPU:        id,
			},
			From: from,
			To:   at,
			Busy: &usage.Busy{Time: time.Duration(part * float64(u.Length)), Variance: std * std},
		})
	}
}

// occupantsOf are the leases of an instance, or of compute instances of it, and the processes in it that are in no lease.
func (w *Watch) occupantsOf(g *observe.GPU, in *gpu.Instance) (out occupants) {
	out.leases = leasesIn(w.Live(), in)
	for i := range out.leases {
		out.names = append(out.names, fmt.Sprint(out.leases[i].ID, " ", out.leases[i].Generation))
	}
	leaseOf, daemons := w.LeaseLookup(len(g.Processes)), g.ControlDaemons()
	for i := range g.Processes {
		p := &g.Processes[i]
		if _, leased := leaseOf(p.PID); leased || p.GI == nil || *p.GI != in.ID || attribution.IsServingMPS(daemons, p.PID) {
			continue
		}
		out.others = true
		out.names = append(out.names, fmt.Sprint(p.PID))
	}
	slices.Sort(out.names)
	return out
}

// endedIn reports whether a lease of an instance ended within d: what was counted may be its work.
func (w *Watch) endedIn(in *gpu.Instance, d time.Duration) bool {
	return w.EndedLately != nil && len(leasesIn(w.EndedLately(d), in)) > 0
}

// leasesIn are those of the leases that have an instance, or compute instances of it.
func leasesIn(leases []lease.Lease, in *gpu.Instance) (out []lease.Lease) {
	for i := range leases {
		if slices.ContainsFunc(in.Compute, func(c gpu.ComputeInstance) bool {
			return slices.Contains(leases[i].Place.Devices, c.UUID)
		}) {
			out = append(out, leases[i])
		}
	}
	return out
}
