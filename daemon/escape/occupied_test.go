package escape

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/store/storetest"
)

func TestOccupants(t *testing.T) {
	second := gpu.Placement{Start: 4, Size: 4}
	g := &observe.GPU{
		Snapshot: gpu.Snapshot{
			Identity:  gpu.Identity{UUID: "GPU-0"},
			Instances: []gpu.Instance{{ID: 1, Placement: gpu.Placement{Size: 4}}, {ID: 2, Placement: second}},
		},
	}
	in := func(gi uint32) *uint32 { return &gi }
	for _, tt := range []struct {
		name, mode string
		gi         *uint32
		want       *store.Where
	}{
		{name: "an exclusive GPU", mode: api.ModeExclusive, want: &store.Where{GPU: "GPU-0"}},
		{name: "an instance", mode: api.ModeMIG, gi: in(2), want: &store.Where{GPU: "GPU-0", Instance: second}},
		{name: "an instance that was removed", mode: api.ModeMIG, gi: in(3)},
		{name: "a partitioned GPU, no instance", mode: api.ModeMIG},
		{name: "a time-sliced GPU", mode: api.ModeTimeslice},
		{name: "under MPS", mode: api.ModeMPS},
	} {
		c, ok := occupantOn(g, tt.mode, &gpu.Process{PID: 10, GI: tt.gi}, 7)
		if ok != (tt.want != nil) || ok && c != (occupant{process: cgroup.Process{PID: 10, Start: 7}, place: *tt.want}) {
			t.Errorf("%s: %+v, %v", tt.name, c, ok)
		}
	}

	changes := 0
	st := storetest.Open(t)
	e := &Escapes{
		Reporter:  report.NewReporter(slog.New(slog.DiscardHandler), nil),
		State:     state.NewState(st, false),
		WorkerPID: func() int { return 99 },
		Changed:   func() { changes++ },
	}
	self, err := procfs.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	cg, err := procfs.Cgroup(self.PID)
	if err != nil {
		t.Skipf("needs a cgroup v2 hierarchy, in which this process is: %v", err)
	}
	compute := &gpu.Process{PID: self.PID, Kind: gpu.ComputeProcess}
	for _, tt := range []struct {
		name     string
		mps      bool
		st       procfs.Stat
		quiesced []string
		want     bool
	}{
		{name: "a process of no lease", st: self, quiesced: []string{"/no/such.service"}, want: true},
		{name: "an MPS server", mps: true, st: self},
		{name: "the worker", st: procfs.Stat{PID: 99}},
		{name: "a unit of node.quiesce", st: self, quiesced: []string{cg}},
	} {
		if got := e.occupies(compute, tt.mps, tt.st, tt.quiesced); got != tt.want {
			t.Errorf("%s occupies: %v", tt.name, got)
		}
	}

	one := occupant{process: cgroup.Process{PID: 10}, place: store.Where{GPU: "GPU-0"}}
	two := occupant{process: cgroup.Process{PID: 11}, place: store.Where{GPU: "GPU-0", Instance: second}}
	for i, tt := range []struct {
		now     map[occupant]bool
		changes int
	}{{map[occupant]bool{one: true}, 1}, {map[occupant]bool{one: true}, 1}, {map[occupant]bool{one: true, two: true}, 2}, {nil, 3}} {
		e.setOccupants(func(map[occupant]bool) map[occupant]bool { return tt.now })
		got := e.State.Closures(time.Time{}).Of(closing.Occupied)
		if len(got) != len(tt.now) || changes != tt.changes || len(got.At(one.place)) == 1 != tt.now[one] {
			t.Errorf("%d: %v, %d changes", i, got, changes)
		}
	}
}
