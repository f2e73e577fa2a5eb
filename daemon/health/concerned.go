package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// endedWithin is how long before its XID is read a lease may have ended because of it.
const endedWithin = 5 * time.Second

// concern records an XID of class x for the leases that it concerns, and notifies those for which something follows. id is the lease
// that caused it, if that is known. An XID of an instance concerns only the leases in it.
func (k *Health) concern(r *rules.Report, x rules.XID, id string) {
	w := api.LeaseXID{XID: r.XID, Meaning: x.Meaning, GPU: string(r.GPU), Last: r.At, Relation: api.XIDOfGPU}
	switch {
	case id != "":
		if r.Counted { // The others were suspected before the process was known.
			w.Relation = api.XIDPossible
			k.eachConcerned(r, func(other string) { k.Leases.RetractXID(other, w) })
		}
		w.Relation = api.XIDCaused
		if x.Class != rules.Lost && x.Class != rules.Reset {
			k.Leases.RecordXID(id, w)
			if (x.Class == rules.Program || x.Class == rules.Contained) && !k.reportedByMPS(r) {
				k.note(id, r, x)
			}
			return
		}
		w.Relation = api.XIDOfGPU // Also if a program caused it, it is trouble of the GPU now.
	case x.Class == rules.Program, x.Class == rules.Contained:
		w.Relation = api.XIDPossible
	case x.Class == rules.Notice, x.Class == rules.Rows:
		return // Nothing follows for a lease.
	}
	if x.Class == rules.Lost {
		whole := *r
		whole.GI, whole.CI = nil, nil
		r = &whole
	}
	if r.Counted {
		return // All that it concerns have it.
	}
	k.eachConcerned(r, func(other string) {
		k.Leases.RecordXID(other, w)
		if x.Class == rules.Reset && !k.noticed(note{other, r.XID}, r.At) {
			k.Leases.Note(other, lease.Notice{Kind: "lease.xid", Text: fmt.Sprintf(
				"%s on %s: what its programs compute there may be wrong; start them again when the GPU was reset, or on another one",
				x, k.nameOf(r.GPU),
			)})
		}
	})
}

// eachConcerned calls f for each lease that uses the instance of a report, or the GPU if it has none, and for those that ended just
// before.
func (k *Health) eachConcerned(r *rules.Report, f func(id string)) {
	for _, id := range k.leasesAt(r) {
		f(id)
	}
}

// leasesAt are the ids of the leases that used the instance of a report when it happened, or its GPU if the report has none: those that
// ended just before too, and none that started after it.
func (k *Health) leasesAt(r *rules.Report) []string {
	out := k.leasesIn(slices.DeleteFunc(slices.Clone(k.Live()), func(l lease.Lease) bool {
		return l.Started != nil && l.Started.After(r.At)
	}), r)
	for _, id := range k.leasesIn(k.endedLately(), r) {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// endedLately are the leases that may have ended because of what is read now.
func (k *Health) endedLately() []lease.Lease {
	if k.EndedLately == nil {
		return nil
	}
	return k.EndedLately(endedWithin)
}

// leasesIn are the ids of those of the leases that use the instance of a report, or its GPU if the report has none.
func (k *Health) leasesIn(leases []lease.Lease, r *rules.Report) (out []string) {
	if r.GI == nil {
		return idsOn(leases, r.GPU)
	}
	g, ok := k.Observed().GPU(r.GPU)
	if !ok {
		return nil
	}
	for i := range g.Instances {
		in := &g.Instances[i]
		if in.ID != *r.GI {
			continue
		}
		for j := range leases {
			if slices.ContainsFunc(in.Compute, func(c gpu.ComputeInstance) bool {
				return (r.CI == nil || c.ID == *r.CI) && slices.Contains(leases[j].Place.Devices, c.UUID)
			}) {
				out = append(out, leases[j].ID)
			}
		}
	}
	return out
}

// idsOn are the ids of those of the leases that use a GPU or an instance of it.
func idsOn(leases []lease.Lease, id gpu.UUID) (out []string) {
	for i := range leases {
		if slices.Contains(leases[i].Place.GPUs, id) {
			out = append(out, leases[i].ID)
		}
	}
	return out
}

// lost records that a GPU is lost for the leases on it, and notifies them, once. Of those that ended just before it is only recorded.
func (k *Health) lost(id gpu.UUID, since time.Time, reason string) {
	for _, l := range idsOn(k.Live(), id) {
		if k.Leases.RecordLost(l, api.LostGPU{GPU: string(id), Since: since, Reason: reason}) {
			k.Leases.Note(l, lease.Notice{Kind: "lease.gpu-lost", Text: fmt.Sprintf(
				"%s is lost: %s. Its programs cannot go on there: 'gpushare lease stop %s' ends it, and a new lease gets another GPU",
				k.nameOf(id), reason, l,
			)})
		}
	}
	for _, l := range idsOn(k.endedLately(), id) {
		k.Leases.RecordLost(l, api.LostGPU{GPU: string(id), Since: since, Reason: reason})
	}
}

// followLost records of each GPU that it is lost or answers again, as the observation says. It is lost if the driver says so, or does not
// find it. With every other error, as when it does not answer in time, its programs may go on.
func (k *Health) followLost(node *observe.Node) {
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		switch {
		case node.DriverErr == nil && gpu.IsAny(g.Err, gpu.ErrLost, gpu.ErrNotFound):
			k.lost(id, k.Now(), g.Err.Error())
		case seen(node, g).Answers && !k.saysLost(id): // Else the observation may be from before the XID.
			k.Leases.RecordFound(id, k.Now())
		}
	}
	for i := range node.Missing {
		k.lost(node.Missing[i].UUID, k.Now(), state.MissingReason)
	}
}
