package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// State is the state of a lease.
type State string

// The states, in order. Admitted is not among them: it lasts only inside the evaluation of the queue.
const (
	requested State = "requested" // Submit has not returned it: no caller sees a lease in this state

	Queued   State = "queued"   // waits for a place
	Placed   State = "placed"   // has a place, its process is not isolated yet
	Isolated State = "isolated" // its process is isolated, the record is being written
	Running  State = "running"  // reported to the caller
	Ending   State = "ending"   // its isolation is being removed; it still has its place
	Ended    State = "ended"
)

// Live reports whether a lease in this state has a place.
func (s State) Live() bool { return s == Placed || s == Isolated || s == Running || s == Ending }

// wire returns the state as the API reports it.
func (s State) wire() string {
	if s == Isolated {
		return api.LeasePlaced
	}
	return string(s)
}

// How a lease got its processes. Those of the first two are isolated; the others are leased in place, with only the
// restrictions that are possible there.
const (
	OriginRun       = api.OriginRun
	OriginDetached  = api.OriginDetached
	OriginAttached  = api.OriginAttached
	OriginLogin     = api.OriginLogin
	OriginUnit      = api.OriginUnit
	OriginContainer = api.OriginContainer
)

// Process is one process. A pid is used again later, the pair of pid and start time is not.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot, field 22 of /proc/PID/stat
}

// Lease is one running use of a grant. Values of it are copies.
type Lease struct {
	ID         string   `json:"id"`
	Generation uint64   `json:"generation"` // assigned by gpushare, never used twice
	Terms      Grant    `json:"terms"`      // as they were when it was placed, except for what changes live
	State      State    `json:"state"`
	User       string   `json:"user,omitempty"`
	UID        int      `json:"uid"`
	Command    []string `json:"command,omitempty"`
	Process    Process  `json:"process,omitzero"`
	Place      Place    `json:"place,omitzero"`
	// Slice is the grant after which its cgroup slice is named, if its own was renamed while leases ran in that slice.
	Slice Key `json:"slice,omitzero"`

	Origin string `json:"origin,omitempty"` // how it got its processes: one of the Origin constants; empty is OriginRun
	// Cgroup is the cgroup of its processes, with all below, if that is no scope of gpushare. It is relative to the
	// cgroup root.
	Cgroup string `json:"cgroup,omitempty"`
	Unit   string `json:"unit,omitempty"` // the service manager's name for Cgroup, if it has one
	// AttachedBy is the uid of the user who attached it. Another member may not release it, even if the processes are
	// that member's.
	AttachedBy int    `json:"attached_by,omitempty"`
	Key        string `json:"key,omitempty"` // of the request, chosen by the caller

	Engine *Engine `json:"engine,omitempty"` // who requested it; nil: a user did
	Own    Own     `json:"own,omitzero"`     // what it has of its grant for itself
	// OwnTogether is what all leases of its grant there have for themselves together, as of when the table gave this copy.
	OwnTogether Own `json:"-"`

	Isolation api.IsolationStatus `json:"isolation,omitzero"`
	Notices   []string            `json:"notices,omitempty"` // the last ones, newest last
	Reason    string              `json:"reason,omitempty"`  // why it ends or ended
	// Stopping is set once its processes are stopped. Those of one that only ends may go on, if it is in place.
	Stopping bool `json:"stopping,omitempty"`

	XIDs     []api.LeaseXID `json:"xids,omitempty"` // the last ones that concern it, newest last
	LostGPUs []api.LostGPU  `json:"lost_gpus,omitempty"`

	Created time.Time  `json:"created"`
	Started *time.Time `json:"started,omitempty"`
	Expires *time.Time `json:"expires,omitempty"` // if it has a time
	// EndBy is when it ends at the latest, if it got a place that an earlier request waits for: its time counts from then.
	EndBy *time.Time `json:"end_by,omitempty"`
	// Part is how much of each of its GPUs it keeps from others, 0…1, as of the change that it is reported with; see Table.Parts.
	Part *float64 `json:"-"`
	// MaxTime is how long it runs, if its request said so; nil: as long as the grant says.
	MaxTime *api.Duration `json:"max_time,omitempty"`
}

// Time returns how long the lease runs, and whose word that is; nil: as long as it likes.
func (l *Lease) Time() (whole *api.Duration, name string) {
	if l.MaxTime != nil {
		return l.MaxTime, "time"
	}
	return l.Terms.Spec.MaxTime, "max_time"
}

// InPlace reports whether the lease's processes were not moved into a scope of gpushare. Its end does not end them.
func (l *Lease) InPlace() bool {
	switch l.Origin {
	case OriginAttached, OriginLogin, OriginUnit, OriginContainer:
		return true
	}
	return false
}

// maxNotices is how many notices a lease keeps.
const maxNotices = 8

// Note adds a line for its user; the last ones are kept.
func (l *Lease) Note(line string) {
	l.Notices = append(slices.Clone(l.Notices), text.Short(line, MaxKept))
	if n := len(l.Notices); n > maxNotices {
		l.Notices = slices.Delete(l.Notices, 0, n-maxNotices)
	}
}

// clone returns a copy that shares nothing that is written later.
func (l *Lease) clone() Lease {
	c := *l
	c.Notices = slices.Clone(l.Notices)
	c.XIDs, c.LostGPUs = slices.Clone(l.XIDs), slices.Clone(l.LostGPUs)
	return c
}

// Wire returns the lease as the API reports it. The caller adds what is measured: processes, memory in use, occupancy.
func (l *Lease) Wire() api.Lease {
	w := api.Lease{
		ID:         l.ID,
		Generation: l.Generation,
		Tenant:     l.Terms.Tenant,
		Grant:      l.Terms.Spec.Name,
		Kind:       l.Terms.Kind(),
		State:      l.State.wire(),
		User:       l.User,
		UID:        l.UID,
		Command:    l.Command,
		PID:        l.Process.PID,
		Origin:     cmp.Or(l.Origin, OriginRun),
		Isolation:  l.Isolation,
		Notices:    slices.Clone(l.Notices),
		XIDs:       slices.Clone(l.XIDs),
		LostGPUs:   slices.Clone(l.LostGPUs),
		Created:    l.Created,
		Started:    l.Started,
		Expires:    l.Expires,
		MaxTime:    l.MaxTime,
		Reason:     l.Reason,
		Engine:     l.engineWire(),
	}
	if l.Waits() {
		w.PID = 0 // It was of the processes before.
	}
	w.InstanceGeneration = l.Place.Generation
	for _, id := range l.Place.GPUs {
		w.GPUs = append(w.GPUs, string(id))
	}
	for _, id := range l.Place.Devices {
		w.Devices = append(w.Devices, string(id))
	}
	if s := l.Terms.share(); s != nil {
		w.Share = &api.LeaseShare{Entitled: l.Share(), Latency: l.Terms.Spec.Latency, Advisory: l.Terms.Kind() == api.ModeMPS}
		if s.GPUMemory != nil {
			w.GPUMemory = &api.LeaseMemory{Limit: l.Memory(), Backend: memoryBackend(l.Terms.Kind())}
		}
	}
	if l.Place.Memory > 0 {
		w.GPUMemory = &api.LeaseMemory{Limit: l.Place.Memory, Backend: "mig"}
	}
	return w
}

// memoryBackend names what enforces a memory limit, from the kind of grant alone. The caller knows more and may replace
// it.
func memoryBackend(kind string) string {
	if kind == api.ModeMPS {
		return "mps"
	}
	return "reactive"
}
