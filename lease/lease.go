package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
)

// State is how far a lease has come.
type State string

// The states, in order. Requested and admitted are not among them: nobody can see a lease in those.
const (
	Queued   State = "queued"  // waits for a place
	Placed   State = "placed"  // has a place, its process is outside the walls
	Isolated State = "walled"  // the process is inside, the record is being written
	Running  State = "running" // the caller was told
	Ending   State = "ending"  // its walls are being taken down; it still holds its place
	Ended    State = "ended"
)

// Live tells whether a lease in this state holds a place.
func (s State) Live() bool { return s == Placed || s == Isolated || s == Running || s == Ending }

// wire is the state as the API tells it.
func (s State) wire() string {
	if s == Isolated {
		return api.LeasePlaced
	}
	return string(s)
}

// What holds a lease's processes. The first two have walls of their own; the rest stay where they are, and only what can
// be done there holds.
const (
	OriginRun       = api.OriginRun
	OriginDetached  = api.OriginDetached
	OriginAttached  = api.OriginAttached
	OriginLogin     = api.OriginLogin
	OriginUnit      = api.OriginUnit
	OriginContainer = api.OriginContainer
)

// Process is one process for as long as it lives: pids come back, the pair does not.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot, field 22 of /proc/PID/stat
}

// Lease is one running use of a grant. Values of it are copies.
type Lease struct {
	ID         string   `json:"id"`
	Generation uint64   `json:"generation"` // our own number, never given twice
	Terms      Grant    `json:"terms"`      // as they were when it was placed, but for what changes live
	State      State    `json:"state"`
	User       string   `json:"user,omitempty"`
	UID        int      `json:"uid"`
	Command    []string `json:"command,omitempty"`
	Process    Process  `json:"process,omitzero"`
	Place      Place    `json:"place,omitzero"`

	Origin string `json:"origin,omitempty"` // what holds its processes: one of the Held constants; empty is OriginRun
	// Cgroup is where its processes are when that is no scope of ours, relative to the cgroup root: theirs and all below.
	Cgroup string `json:"cgroup,omitempty"`
	Unit   string `json:"unit,omitempty"` // the service manager's name for Cgroup, where it has one
	// AttachedBy is who attached it, as a user id: another member, its own user too, may not take it from the books again.
	AttachedBy int    `json:"attached_by,omitempty"`
	Key        string `json:"key,omitempty"` // the caller's mark of the request that it came from

	Isolation api.IsolationStatus `json:"isolation,omitzero"`
	Notices   []string            `json:"notices,omitempty"` // the last few, newest last
	Reason    string              `json:"reason,omitempty"`  // why it ends or ended

	Created time.Time  `json:"created"`
	Started *time.Time `json:"started,omitempty"`
	Ends    *time.Time `json:"expires,omitempty"` // by max_time
}

// InPlace tells whether the lease's processes stay where they are: nobody moved them behind walls of ours, and its end
// does not end them.
func (l *Lease) InPlace() bool {
	switch l.Origin {
	case OriginAttached, OriginLogin, OriginUnit, OriginContainer:
		return true
	}
	return false
}

// maxNotices is how many notices a lease keeps.
const maxNotices = 8

func (l *Lease) notice(text string) {
	l.Notices = append(l.Notices, text)
	if n := len(l.Notices); n > maxNotices {
		l.Notices = slices.Delete(l.Notices, 0, n-maxNotices)
	}
}

// clone makes a copy that shares nothing that is written later.
func (l *Lease) clone() Lease {
	c := *l
	c.Notices = slices.Clone(l.Notices)
	return c
}

// Wire gives the lease as the API tells it. What is measured (processes, memory in use, occupancy) is the caller's to
// add.
func (l *Lease) Wire() api.Lease {
	w := api.Lease{
		ID: l.ID, Generation: l.Generation, Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name, Kind: l.Terms.Kind(),
		State: l.State.wire(), User: l.User, UID: l.UID, Command: l.Command, PID: l.Process.PID,
		Origin: cmp.Or(l.Origin, OriginRun), Isolation: l.Isolation, Notices: slices.Clone(l.Notices), Created: l.Created, Started: l.Started, Expires: l.Ends, Reason: l.Reason,
	}
	w.InstanceGeneration = l.Place.Generation
	for _, id := range l.Place.GPUs {
		w.GPUs = append(w.GPUs, string(id))
	}
	for _, id := range l.Place.Devices {
		w.Devices = append(w.Devices, string(id))
	}
	if s := l.Terms.share(); s != nil {
		w.Share = &api.LeaseShare{Entitled: l.Terms.percent()}
		if s.GPUMemory != nil {
			w.GPUMemory = &api.LeaseMemory{Limit: l.Terms.memory(), Backend: memoryBackend(l.Terms.Kind())}
		}
	}
	if l.Place.Memory > 0 {
		w.GPUMemory = &api.LeaseMemory{Limit: l.Place.Memory, Backend: "mig"}
	}
	return w
}

// memoryBackend names what makes a memory limit hold by the kind of grant alone; the caller knows more and may say so.
func memoryBackend(kind string) string {
	if kind == api.ModeMPS {
		return "mps"
	}
	return "reactive"
}
