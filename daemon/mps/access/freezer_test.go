package access

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
)

// onMPS is a node with the lease "joining" on MPS and the lease "other" on the time of the same GPU. Its process 7 is in a handshake
// as often as handshakes has it.
type onMPS struct {
	reasons    map[string][]cgroup.FreezeReason
	freezes    int
	handshakes int // negative: it never ends
	pid        int // that is in the handshake
	err        error
	servers    []int
}

func (o *onMPS) Freeze(_ context.Context, id string, reason cgroup.FreezeReason, _ time.Duration) error {
	o.freezes++
	if !slices.Contains(o.reasons[id], reason) {
		o.reasons[id] = append(o.reasons[id], reason)
	}
	return nil
}

func (o *onMPS) Thaw(_ context.Context, id string, reason cgroup.FreezeReason) error {
	o.reasons[id] = slices.DeleteFunc(o.reasons[id], func(r cgroup.FreezeReason) bool { return r == reason })
	return nil
}

func (o *onMPS) Stopping(_ context.Context, id string) error         { delete(o.reasons, id); return nil }
func (o *onMPS) Retain(_ context.Context, ids map[string]bool) error { return nil }
func (o *onMPS) Reasons(id string) []cgroup.FreezeReason             { return slices.Clone(o.reasons[id]) }
func (o *onMPS) Ready() error                                        { return nil }
func (o *onMPS) AwaitGreeting(context.Context, mps.Device, time.Duration) bool {
	return o.handshakes == 0
}

func (o *onMPS) Handshakes(context.Context, mps.Device) ([]control.Peer, error) {
	if o.err != nil {
		return nil, o.err
	}
	if o.handshakes == 0 {
		return nil, nil
	}
	o.handshakes--
	return []control.Peer{{Processes: []procfs.Stat{{PID: o.pid}}}}, nil
}

func (o *onMPS) freezer() *Freezer {
	o.reasons = map[string][]cgroup.FreezeReason{}
	terms := map[string]lease.Grant{
		"joining": {Spec: api.GrantSpec{MPS: &api.ShareSpec{}}},
		"other":   {Spec: api.GrantSpec{Timeslice: &api.ShareSpec{}}},
	}
	return &Freezer{
		Scopes: o, MPS: o, Now: func() time.Time { return time.Unix(1e9, 0) },
		Lease: func(id string) (lease.Lease, bool) {
			t, ok := terms[id]
			return lease.Lease{ID: id, Terms: t, Place: lease.Place{GPUs: []gpu.UUID{gpuA}}}, ok
		},
		LeaseOf: func(pid int) (string, bool) { return "joining", pid == 7 },
		Observed: func() *observe.Node {
			return &observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{}, MPS: &mps.State{GPU: gpuA, PID: o.servers[0]}}}}
		},
	}
}

// A lease is not frozen while a process of it is in its handshake, and is when that ends. What another process does to the control
// daemon keeps no lease from being frozen.
func TestNoLeaseIsFrozenInAHandshake(t *testing.T) {
	for name, c := range map[string]struct {
		o       onMPS
		lease   string
		freezes int
		refused error
	}{
		"no handshake":                     {o: onMPS{}, lease: "joining", freezes: 1},
		"a handshake that ends":            {o: onMPS{handshakes: 3, pid: 7}, lease: "joining", freezes: 4},
		"a handshake that does not end":    {o: onMPS{handshakes: -1, pid: 7}, lease: "joining", freezes: freezeAttempts, refused: ErrJoins},
		"the handshake of another process": {o: onMPS{handshakes: -1, pid: 8}, lease: "joining", freezes: 1},
		"it cannot be found":               {o: onMPS{err: errors.New("no right")}, lease: "joining", freezes: freezeAttempts, refused: ErrJoins},
		"the daemon has ended":             {o: onMPS{err: procfs.ErrNoProcess}, lease: "joining", freezes: 1},
		"a lease that is not on MPS":       {o: onMPS{handshakes: -1, pid: 7}, lease: "other", freezes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.servers = []int{1}
			f := c.o.freezer()
			err := f.Freeze(t.Context(), c.lease, cgroup.ForAdministrator, cgroup.Forever)
			if !errors.Is(err, c.refused) {
				t.Errorf("error %v, want %v", err, c.refused)
			}
			if frozen := len(f.Reasons(c.lease)) > 0; frozen != (c.refused == nil) || c.o.freezes != c.freezes {
				t.Errorf("frozen %v after %d attempts, want %d", frozen, c.o.freezes, c.freezes)
			}
		})
	}
}

// A lease that has a server of MPS in it is never frozen.
func TestNoServerIsFrozen(t *testing.T) {
	o := onMPS{servers: []int{7}}
	f := o.freezer()
	if err := f.Freeze(
		t.Context(), "joining", cgroup.ForGPUMemory, time.Minute,
	); err == nil || !strings.Contains(err.Error(), "pid 7") ||
		o.freezes != 0 {
		t.Errorf("error %v after %d freezes", err, o.freezes)
	}
}

// A lease that keeps others out is thawed until the daemon greets, and is then frozen as it was; what was thawed for good is not.
func TestAFrozenLeaseIsReleased(t *testing.T) {
	o := onMPS{servers: []int{1}}
	f := o.freezer()
	for reason, d := range map[cgroup.FreezeReason]time.Duration{cgroup.ForAdministrator: cgroup.Forever, cgroup.ForGPUMemory: time.Minute} {
		if err := f.Freeze(t.Context(), "joining", reason, d); err != nil {
			t.Fatal(err)
		}
	}
	on := mps.Whole(gpuA)
	if frozen, err := f.Release(t.Context(), "joining", on); !frozen || err != nil || len(f.Reasons("joining")) != 2 {
		t.Errorf("released: %v %v, frozen for %v", frozen, err, f.Reasons("joining"))
	}
	if err := f.Thaw(t.Context(), "joining", cgroup.ForGPUMemory); err != nil {
		t.Fatal(err)
	}
	if frozen, err := f.Release(t.Context(), "joining", on); !frozen || err != nil ||
		!slices.Equal(f.Reasons("joining"), []cgroup.FreezeReason{cgroup.ForAdministrator}) {
		t.Errorf("after a thaw: %v %v, frozen for %v", frozen, err, f.Reasons("joining"))
	}
	o.handshakes, o.pid = -1, 7
	if frozen, err := f.Release(t.Context(), "joining", on); !frozen || err == nil || len(f.Reasons("joining")) != 0 {
		t.Errorf("in a handshake that does not end: %v %v, frozen for %v", frozen, err, f.Reasons("joining"))
	}
	if frozen, err := f.Release(t.Context(), "other", on); frozen || err != nil {
		t.Errorf("a lease that is not frozen: %v %v", frozen, err)
	}
}
