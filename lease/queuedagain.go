package lease

import (
	"context"
	"errors"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// Occupied is the error of an Isolation that found a process of no lease on the place of a lease. Nothing was isolated then.
type Occupied struct {
	GPU gpu.UUID
	Err error // says so to the user
}

func (e *Occupied) Error() string { return e.Err.Error() }

func (e *Occupied) Unwrap() error { return e.Err }

// OccupiedText is why no lease gets a place that a process of no lease uses. The users who wait read it; a condition names the process.
const OccupiedText = "a process of no lease uses it"

// ErrQueuedAgain is the error of Start when the place of a request that waits was occupied: its ticket waits as before, and is
// awaited again.
var ErrQueuedAgain = errors.New("its place is occupied: it waits again")

// queueAgain takes the place of a lease back, and puts its ticket where it was in the queue. It returns false where the request does
// not wait, or the lease was ended meanwhile. The entry is busy, and nothing is isolated.
func (t *Table) queueAgain(ctx context.Context, e *entry, at gpu.UUID) bool {
	t.mu.Lock()
	k := e.ticket
	if k == nil || k.request.Wait == nil || e.endRequested != "" {
		t.mu.Unlock()
		return false
	}
	t.countUseLocked()
	delete(t.leases, e.ID)
	t.view.occupy(at, &e.Place)
	k.lease.Terms, k.lease.Place, k.lease.State = k.candidates[0], Place{}, Queued
	k.lease.EndBy = nil
	k.selected, k.unread = "", true
	k.moveLocked(ticketWaiting)
	t.queue = append(t.queue, k)
	t.changedLocked(&k.lease)
	k.updateLocked(e.spec != t.view.Generation) // A spec that came into force since may have no place for it.
	t.evaluateLocked()
	t.mu.Unlock()
	// The record of the lease goes. If that fails the next one is without it too.
	_ = t.save(ctx)
	return true
}

// occupy closes the place of a lease on one GPU, until the next view says whether it still is occupied.
func (v *View) occupy(id gpu.UUID, p *Place) {
	v.GPUs = slices.Clone(v.GPUs) // The caller of Update may still read its own.
	d := v.gpu(id)
	switch {
	case d == nil:
	case p.Instance == nil:
		d.Occupied = OccupiedText
	default:
		d.Instances = slices.Clone(d.Instances)
		for i := range d.Instances {
			in := &d.Instances[i]
			if in.Placement != *p.Instance {
				continue
			}
			if p.Compute == "" {
				in.Occupied = OccupiedText
				continue
			}
			in.Compute = slices.Clone(in.Compute)
			for j := range in.Compute {
				if in.Compute[j].UUID == p.Compute {
					in.Compute[j].Occupied = OccupiedText
				}
			}
		}
	}
}
