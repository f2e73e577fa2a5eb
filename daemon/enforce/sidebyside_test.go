package enforce

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// secondGPU is another GPU of the host.
const secondGPU gpu.UUID = "GPU-2"

// twoGPUs is a driver with two GPUs. Calls of the first may hang, whatever their context says.
type twoGPUs struct {
	*fakeDriver
	hung chan struct{} // nil: no call hangs; else calls of the first GPU return when it is closed
	list map[gpu.UUID]func() []gpu.Process
}

func (d *twoGPUs) wait(id gpu.UUID) {
	if id == testGPU && d.hung != nil {
		<-d.hung
	}
}

func (d *twoGPUs) Memory(_ context.Context, id gpu.UUID) (gpu.Memory, error) {
	d.wait(id)
	return d.memoryOf(d.list[id]()), nil
}

func (d *twoGPUs) Snapshot(_ context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	d.wait(id)
	list := d.list[id]()
	return gpu.Snapshot{Processes: list, Memory: d.memoryOf(list)}, nil
}

func (d *twoGPUs) Processes(_ context.Context, id gpu.UUID) ([]gpu.Process, error) {
	d.wait(id)
	return d.list[id](), nil
}

// A GPU whose driver calls do not return delays no other: an offender on the second GPU is warned and frozen as soon as
// without the hang.
func TestHungGPUDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t, "freeze")
			w.enforce("on", api.ModeExclusive)
			memory := api.Bytes(limit)
			grace := api.Duration(2 * time.Second)
			w.Table.Update(lease.View{
				Generation: 3,
				GPUs: []lease.GPUView{
					{UUID: testGPU, Mode: api.ModeTimeslice, Capacity: 1 << 30},
					{UUID: secondGPU, Mode: api.ModeTimeslice, Capacity: 1 << 30},
				},
				Grants: []lease.Grant{
					{
						Tenant: "red",
						Spec:   api.GrantSpec{Name: "part", Timeslice: &api.ShareSpec{Share: 50, GPUMemory: &memory}},
						GPUs:   []gpu.UUID{testGPU},
					},
					{
						Tenant:  "blue",
						Spec:    api.GrantSpec{Name: "part", Timeslice: &api.ShareSpec{Share: 50, GPUMemory: &memory}},
						GPUs:    []gpu.UUID{secondGPU},
						Overuse: &api.OveruseSpec{GPUMemory: "freeze", Grace: &grace},
					},
				},
			})
			blue := w.startLease(t, "blue")
			if l, _ := w.Table.Get(blue); !slices.Equal(l.Place.GPUs, []gpu.UUID{secondGPU}) {
				t.Fatalf("the second lease is on %v", l.Place.GPUs)
			}
			w.port.assign(unusedPID, w.lease)
			w.port.assign(unusedPID+1, blue)
			d := &twoGPUs{fakeDriver: w.driver, list: map[gpu.UUID]func() []gpu.Process{
				testGPU: func() []gpu.Process { return []gpu.Process{on(unusedPID, limit/2)} },
				secondGPU: func() []gpu.Process {
					if time.Since(w.journal.start) < 3*time.Second {
						return []gpu.Process{on(unusedPID+1, limit/2)}
					}
					return []gpu.Process{on(unusedPID+1, 2*limit)}
				},
			}}
			if hangs {
				d.hung = make(chan struct{})
			}
			w.Driver = d
			w.begin(t)
			w.runUntil(5 * time.Second)
			got := sorted(w.journal.read())
			if hangs {
				close(d.hung)
			}
			w.end()
			want := []string{"3s freeze", "3s memory.freeze", "3s memory.over"}
			for i := range got {
				at, what, _ := strings.Cut(got[i], " ")
				if d, _ := time.ParseDuration(at); d >= 3*time.Second && d < 3*time.Second+100*time.Millisecond {
					got[i] = "3s " + what
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("GPU 1 hangs: %v (-want +got):\n%s", hangs, d)
			}
		})
	}
}

// A quiet GPU is read once a second. One with little headroom until a limit is read more often, and its processes are still only
// listed when its memory moved.
func TestReadingsFollowTheHeadroom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, "kill")
		w.port.assign(unusedPID, w.lease)
		lists := 0
		w.driver.sample = func() ([]gpu.Process, error) { return []gpu.Process{on(unusedPID, limit/2)}, nil }
		d := &countingDriver{fakeDriver: w.driver, lists: &lists}
		w.Driver = d
		w.begin(t)
		w.runUntil(31 * time.Second)
		w.end()
		// 50 MiB are filled in 2.4 ms at 20 GiB/s: it is read every 20 ms.
		if d.memory < 1400 || d.memory > 1510 {
			t.Errorf("the memory was read %d times in 30 s", d.memory)
		}
		if lists < 9 || lists > 12 {
			t.Errorf("the processes were listed %d times in 30 s in which nothing moved", lists)
		}
	})
}

type countingDriver struct {
	*fakeDriver
	memory int
	lists  *int
}

func (d *countingDriver) Memory(ctx context.Context, id gpu.UUID) (gpu.Memory, error) {
	d.memory++
	return d.fakeDriver.Memory(ctx, id)
}

func (d *countingDriver) Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error) {
	*d.lists++
	return d.fakeDriver.Snapshot(ctx, id)
}

func (d *countingDriver) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	*d.lists++
	return d.fakeDriver.Processes(ctx, id)
}
