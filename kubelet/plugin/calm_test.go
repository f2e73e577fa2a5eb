package plugin

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/gpushare/api"
)

// flapping is a gpushared with one whole GPU, which a local lease has or not.
type flapping struct {
	dying
	local atomic.Bool
}

func (f *flapping) Status(ctx context.Context) (*api.Status, error) {
	s, err := f.dying.Status(ctx)
	if err == nil && f.local.Load() {
		s.Leases = []api.Lease{{ID: "local-1", Tenant: "local", State: api.LeaseRunning, GPUs: []string{"GPU-1"}}}
	}
	return s, err
}

// A user of the node who starts short leases makes two writes a minute to the API server: the GPU is withdrawn, and offered again within a
// second, once a minute; else it is offered again when none has had it for 10 s.
func TestShortLeasesMakeNoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flapping{dying: dying{watched: watched{event: make(chan struct{})}}}
		type write struct {
			at      time.Time
			devices int
		}
		var writes []write
		p := &Publisher{
			Node: &Node{Daemon: f, Tenant: "kubernetes", Root: t.TempDir()}, Pool: "node1", Log: slog.New(slog.DiscardHandler),
			Submit: func(_ context.Context, r resourceslice.DriverResources) error {
				writes = append(writes, write{time.Now(), countOf(&r)})
				return nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx) }()
		time.Sleep(time.Minute) // of the virtual time of the bubble, as below
		began, last := time.Now(), time.Now()
		for time.Since(began) < 5*time.Minute {
			f.local.Store(true)
			f.event <- struct{}{}
			time.Sleep(800 * time.Millisecond)
			f.local.Store(false)
			last = time.Now()
			f.event <- struct{}{}
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		stop()
		<-done
		var devices []int
		for _, w := range writes {
			devices = append(devices, w.devices)
		}
		// One more is the first publication, and five minutes have begun six times.
		if most := 1 + 2*6; len(writes) > most || !slices.Equal(devices[:3], []int{1, 0, 1}) || devices[len(devices)-1] != 1 {
			t.Fatalf("it writes %d times: %v", len(writes), writes)
		}
		for i, what := range map[int]string{1: "withdrawn", 2: "offered again"} {
			if after := writes[i].at.Sub(began); after > 2*time.Second {
				t.Errorf("it is %s after %s", what, after)
			}
		}
		if after := writes[len(writes)-1].at.Sub(last); after > 14*time.Second {
			t.Errorf("it is offered again %s after the last lease", after)
		}
	})
}
