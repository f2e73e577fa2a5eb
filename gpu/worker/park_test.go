package worker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// A parked client has no worker and starts none: every operation fails at once with the named error, which is no hang. Unpark
// starts one, which forgets what was known of the GPUs.
func TestPark(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(t *testing.T, c *Client, n *fakeNode)
	}{
		{"with a worker", func(t *testing.T, c *Client, _ *fakeNode) {
			if _, err := c.Node(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{"before the first worker", func(*testing.T, *Client, *fakeNode) {}},
		{"with an unresponsive GPU", func(t *testing.T, c *Client, n *fakeNode) {
			hangOnce(t, n, OpSnapshot, gpuA)
			if _, err := c.Snapshot(t.Context(), gpuA); !errors.Is(err, gpu.ErrTimeout) {
				t.Fatal(err)
			}
			if _, err := c.Snapshot(t.Context(), gpuB); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNode(gpuA, gpuB)
				client, l := newTestClient(t, n)
				c.begin(t, client, n)
				for range 2 { // It may be parked again.
					if err := client.Park(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if l.count() > 0 {
					select {
					case <-l.last().Done():
					default:
						t.Error("a worker is left")
					}
				}
				started := l.count()
				began := time.Now()
				for range 5 {
					if _, err := client.Snapshot(t.Context(), gpuA); !errors.Is(err, gpu.ErrParked) {
						t.Errorf("a read fails with %v", err)
					}
					if err := client.DestroyInstance(t.Context(), gpuA, 1); !errors.Is(err, gpu.ErrParked) {
						t.Errorf("a change fails with %v", err)
					}
					if err := client.Retry(t.Context(), ""); !errors.Is(err, gpu.ErrParked) {
						t.Errorf("a retry fails with %v", err)
					}
					if err := client.Events(t.Context(), func(gpu.Event) {}); !errors.Is(err, gpu.ErrParked) {
						t.Errorf("the events fail with %v", err)
					}
				}
				if d := time.Since(began); d > 0 {
					t.Errorf("that takes %v", d)
				}
				if st := client.Status(); !st.Parked || st.Stuck || st.PID != 0 || st.Failure != "" || l.count() != started {
					t.Errorf("the state is %+v, with %d more workers", st, l.count()-started)
				}
				client.Unpark()
				for _, id := range []gpu.UUID{gpuA, gpuB} {
					if _, err := client.Snapshot(t.Context(), id); err != nil {
						t.Errorf("after Unpark: %v", err)
					}
				}
				if st := client.Status(); st.Parked || st.PID == 0 || l.count() != started+1 {
					t.Errorf("after Unpark the state is %+v, with %d more workers", st, l.count()-started)
				}
			})
		})
	}
}

// Operations that run when the client is parked fail with the same error, and their worker ends although it is inside the driver.
func TestParkWithRunningOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, l := newTestClient(t, n)
		if _, err := c.Node(t.Context()); err != nil {
			t.Fatal(err)
		}
		release := hangAlways(n, OpProfiles, gpuA)
		defer release()
		var running sync.WaitGroup
		running.Go(func() {
			if _, err := c.Profiles(t.Context(), gpuA); !errors.Is(err, gpu.ErrParked) {
				t.Errorf("the running operation fails with %v", err)
			}
		})
		running.Go(func() {
			if err := c.Events(t.Context(), func(gpu.Event) {}); !errors.Is(err, gpu.ErrParked) {
				t.Errorf("the events fail with %v", err)
			}
		})
		synctest.Wait()
		w := l.last()
		if err := c.Park(t.Context()); err != nil {
			t.Fatal(err)
		}
		running.Wait()
		<-w.Done()
	})
}

// A worker that is being started when the client is parked is ended too.
func TestParkDuringAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA)
		c, l := newTestClient(t, n)
		hangOnce(t, n, OpNode, gpuA)
		first := make(chan error, 1)
		go func() {
			_, err := c.Node(t.Context())
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Park(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-first; !errors.Is(err, gpu.ErrParked) {
			t.Errorf("the first operation fails with %v", err)
		}
		<-l.last().Done()
		if st := c.Status(); !st.Parked || st.Stuck {
			t.Errorf("the state is %+v", st)
		}
	})
}
