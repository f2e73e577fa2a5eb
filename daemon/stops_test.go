package daemon

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
	"github.com/gpushare/gpushare/mig"
)

func TestPlanStops(t *testing.T) {
	at := gpu.Placement{Start: 4, Size: 4}
	cut := lease.Lease{ID: "red-cut-1", User: "alice", Terms: lease.Grant{Tenant: "red", Spec: api.GrantSpec{Name: "cut", MIG: "3g.20gb"}}, Place: lease.Place{GPUs: []gpu.UUID{observetest.One}, Instance: &at}}
	part := lease.Lease{ID: "red-part-1", User: "bob", Terms: lease.Grant{Tenant: "red", Spec: api.GrantSpec{Name: "part", Timeslice: &api.ShareSpec{Share: 30}}}, Place: lease.Place{GPUs: []gpu.UUID{"GPU-2"}}}
	destroy := func(id gpu.UUID, start uint32) step.Step {
		return step.Step{Kind: mig.KindDestroy, GPU: string(id), Args: step.Must(mig.InstanceArgs{Placed: mig.Placed{Placement: gpu.Placement{Start: start, Size: 4}}})}
	}
	all := func() *desired {
		return &desired{
			gpus:   map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeMIG}, "GPU-2": {Mode: api.ModeTimeslice}},
			grants: map[grantKey][]gpu.UUID{{"red", "cut"}: {observetest.One}, {"red", "part"}: {"GPU-2"}},
		}
	}
	for _, c := range []struct {
		name     string
		want     func(*desired)
		hardware []step.Step
		stops    []string // "lease: reason"
	}{
		{"all stays", func(*desired) {}, nil, nil},
		{"the neighbour instance goes", func(*desired) {}, []step.Step{destroy(observetest.One, 0), destroy("GPU-9", 4), {Kind: mig.KindCreate, GPU: string(observetest.One)}}, nil},
		{"the instance goes", func(*desired) {}, []step.Step{destroy(observetest.One, 4)}, []string{"red-cut-1: its MIG instance goes"}},
		{"the grant goes", func(d *desired) { delete(d.grants, grantKey{"red", "part"}) }, nil, []string{"red-part-1: the spec has no grant part of red"}},
		{"the GPU is for something else", func(d *desired) { d.gpus["GPU-2"] = &api.GPUSpec{Mode: api.ModeExclusive} }, nil, []string{"red-part-1: its GPU becomes exclusive"}},
		{"the GPU is not the grant's any more", func(d *desired) { d.grants[grantKey{"red", "part"}] = []gpu.UUID{observetest.One} }, nil, []string{"red-part-1: grant part of red may not use its GPU"}},
		{"the GPU is named by nobody", func(d *desired) { delete(d.gpus, observetest.One) }, nil, []string{"red-cut-1: its GPU becomes unmanaged"}},
		{"there is no spec any more", func(d *desired) { *d = desired{} }, nil, []string{"red-cut-1: the spec has no grant", "red-part-1: the spec has no grant"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := all()
			c.want(want)
			var got []string
			for _, s := range planStops(want, []lease.Lease{cut, part}, c.hardware) {
				got = append(got, strings.TrimPrefix(s.Text, "stop lease ")+": "+s.Reason)
				if s.Disruption != step.Running || len(s.Disturbs) != 1 || s.Phase != step.Narrow || s.GPU != "" {
					t.Errorf("the step is %+v", s)
				}
			}
			if !slices.EqualFunc(got, c.stops, strings.HasPrefix) {
				t.Errorf("stops %q, want %q", got, c.stops)
			}
		})
	}
}

// Whoever stops a lease is told when it is gone, also when another takes its walls down.
func TestAwaitGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Stopper{departures: &departures{}}
		slow := &slowWalls{begun: make(chan struct{}), end: make(chan struct{})}
		d.table = leasetest.TableOf(t, lease.Config{Walls: slow, Changed: func(lease.Lease) { d.departures.tell() }}, "red", "part", 1001)
		id := d.table.Live()[0].ID
		go func() { _ = d.table.Ended(t.Context(), id, "its last process ended") }() // What it says is seen below.
		<-slow.begun
		if err := d.table.Ended(t.Context(), id, "stopped"); err != nil {
			t.Fatal(err)
		}
		gone := make(chan error, 1)
		go func() { gone <- d.awaitGone(t.Context(), id) }()
		synctest.Wait()
		select {
		case err := <-gone:
			t.Errorf("its walls still stand, and it is said to be gone: %v", err)
		default:
		}
		close(slow.end)
		if err := <-gone; err != nil {
			t.Error(err)
		}
		if _, ok := d.table.Get(id); ok {
			t.Error("it is not gone")
		}
		if err := d.awaitGone(t.Context(), "never-there"); err != nil {
			t.Error(err)
		}
	})
}

// slowWalls take their time to be taken down.
type slowWalls struct {
	leasetest.NoWalls
	begun, end chan struct{}
}

func (w *slowWalls) Unwall(context.Context, lease.Lease) error {
	close(w.begun)
	<-w.end
	return nil
}
