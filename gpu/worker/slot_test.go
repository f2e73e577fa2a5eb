package worker

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// lists makes the fake driver's readings of all instances as long as eight lists, between which they yield.
const lists, listTime = 8, 4 * time.Millisecond

// TestAListGoesBetween starts the readings that a new lease waits for while all instances of its GPU are read: each waits for the rest
// of one list, and not for the rest of all. Nothing else goes in between.
func TestAListGoesBetween(t *testing.T) {
	for _, long := range []struct {
		op   Op
		read func(context.Context, *Client) error
	}{
		{OpProcesses, func(ctx context.Context, c *Client) error { _, err := c.Processes(ctx, gpuA); return err }},
		{OpSnapshot, func(ctx context.Context, c *Client) error { _, err := c.Snapshot(ctx, gpuA); return err }},
	} {
		t.Run(string(long.op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNode(gpuA)
				n.lists, n.listTime = lists, listTime
				c, _ := newTestClient(t, n)
				ctx := t.Context()
				if _, err := c.Memory(ctx, gpuA); err != nil { // Starts the worker.
					t.Fatal(err)
				}
				began := time.Now()
				ended := map[string]time.Duration{}
				note := func(what string, err error) {
					if err != nil {
						t.Errorf("%s: %v", what, err)
					}
					n.set(func(*fakeNode) { ended[what] = time.Since(began) })
				}
				go func() { note("all", long.read(ctx, c)) }()
				synctest.Wait()
				for _, what := range []string{"first", "second", "third"} {
					go func() {
						_, err := c.InstanceProcesses(ctx, gpuA, 5)
						note(what, err)
					}()
					synctest.Wait()
				}
				go func() {
					_, err := c.Memory(ctx, gpuA)
					note("memory", err)
				}()
				time.Sleep(time.Second)
				synctest.Wait()
				n.set(func(*fakeNode) {
					// The first list of all instances, one of an instance, the second list of all, and so on.
					for i, what := range []string{"first", "second", "third"} {
						if want := time.Duration(2*i+2) * listTime; ended[what] != want {
							t.Errorf("the %s list of an instance ended after %s; want %s", what, ended[what], want)
						}
					}
					if want := (lists + 3) * listTime; ended["all"] != want {
						t.Errorf(
							"the reading of all instances ended after %s; want %s: it was let through between lists",
							ended["all"],
							want,
						)
					}
					if ended["memory"] < ended["all"] {
						t.Errorf("the memory was read after %s, before the reading of all instances had ended", ended["memory"])
					}
				})
				if d := c.Stats().Ops[long.op].Driver; d != lists*listTime {
					t.Errorf(
						"the reading of all instances counts as %s inside the driver; want %s, without the lists of others",
						d,
						lists*listTime,
					)
				}
			})
		})
	}
}

// TestAListBetweenOfADriverThatIsSlow lets lists in between until they have taken longer than the deadline of the reading that lets them:
// their time is not its own, also if their callers have left while they ran.
func TestAListBetweenOfADriverThatIsSlow(t *testing.T) {
	for name, leaves := range map[string]bool{"the callers wait": false, "the callers leave": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNode(gpuA)
				n.lists, n.listTime = lists, 200*time.Millisecond
				c, _ := newTestClient(t, n)
				ctx, end := context.WithCancel(t.Context())
				var all error
				go func() {
					defer end()
					_, all = c.Processes(ctx, gpuA)
				}()
				synctest.Wait()
				// A list of all runs, then one of an instance, in the middle of which its caller leaves: the next caller waits for its end.
				limit, between := time.Minute, 0
				if leaves {
					limit = 3 * n.listTime / 2
				}
				for ctx.Err() == nil {
					one, cancel := context.WithTimeout(ctx, limit)
					if _, err := c.InstanceProcesses(one, gpuA, 5); err == nil || leaves {
						between++
					}
					cancel()
					if leaves {
						limit = 2 * n.listTime
					}
				}
				if all != nil {
					t.Errorf("the reading of all instances: %v", all)
				}
				if between < lists-1 {
					t.Errorf("%d lists went in between; want %d", between, lists-1)
				}
				if st := c.Status(); len(st.Unresponsive) > 0 {
					t.Errorf("unresponsive: %v", st.Unresponsive)
				}
			})
		})
	}
}

// TestAListBetweenThatHangs excludes the GPU, as any reading that hangs does, and both callers get an error.
func TestAListBetweenThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(gpuA, gpuB)
		n.lists, n.listTime = lists, listTime
		hung := make(chan struct{})
		n.hang = func(op Op, id gpu.UUID) <-chan struct{} {
			if op == OpInstanceProcesses && id == gpuA {
				return hung
			}
			return nil
		}
		c, _ := newTestClient(t, n)
		ctx := t.Context()
		errs := make(chan error, 2)
		go func() { _, err := c.Processes(ctx, gpuA); errs <- err }()
		synctest.Wait()
		go func() { _, err := c.InstanceProcesses(ctx, gpuA, 5); errs <- err }()
		for range 2 {
			if err := <-errs; !errors.Is(err, gpu.ErrTimeout) {
				t.Errorf("error %v; want %v", err, gpu.ErrTimeout)
			}
		}
		if got := c.Status().Unresponsive; !slices.Equal(got, []gpu.UUID{gpuA}) {
			t.Errorf("unresponsive: %v", got)
		}
		if _, err := c.Memory(ctx, gpuB); err != nil {
			t.Errorf("the other GPU: %v", err)
		}
		close(hung)
	})
}

// TestACallerThatLeavesALetList ends the contexts of both callers at each moment: the slot is free again, and a change is carried out.
func TestACallerThatLeavesALetList(t *testing.T) {
	for after := range 12 {
		synctest.Test(t, func(t *testing.T) {
			n := newFakeNode(gpuA)
			n.lists, n.listTime = lists, listTime
			c, _ := newTestClient(t, n)
			if _, err := c.Memory(t.Context(), gpuA); err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancel(t.Context())
			go func() { _, _ = c.Processes(ctx, gpuA) }()
			synctest.Wait()
			go func() { _, _ = c.InstanceProcesses(ctx, gpuA, 5) }()
			time.Sleep(time.Duration(after) * listTime / 2)
			end()
			if err := c.DestroyInstance(t.Context(), gpuA, 1); err != nil {
				t.Errorf("after %d: %v", after, err)
			}
			if _, err := c.InstanceProcesses(t.Context(), gpuA, 5); err != nil {
				t.Errorf("after %d: a list: %v", after, err)
			}
		})
	}
}
