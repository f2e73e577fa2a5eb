package adoption

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

// noGPUs is a driver without GPUs.
type noGPUs struct{ observe.Driver }

func (noGPUs) Node(context.Context) (gpu.NodeInfo, error) { return gpu.NodeInfo{}, nil }

// fixedSlices are the slices of a node.
type fixedSlices []cgroup.SliceState

func (s fixedSlices) Slices(context.Context) ([]cgroup.SliceState, error) { return s, nil }

// A slice is listed again only when the kernel reports a new cgroup in it, or while it has one that gpushare did not create.
func TestSlicesAreListedWhenTheyChange(t *testing.T) {
	h := cgroup.Hierarchy{Mount: t.TempDir()}
	create := func(cg string) {
		t.Helper()
		if err := os.Mkdir(h.Dir(cg), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var list fixedSlices
	create("/red")
	for _, grant := range []string{"a", "b", "c"} {
		create("/red/" + grant)
		list = append(list, cgroup.SliceState{Name: cgroup.SliceName{Tenant: "red", Grant: grant}, Path: "/red/" + grant})
	}
	observer := &observe.Observer{Driver: noGPUs{}, Slices: list, HostRoot: t.TempDir(), Now: time.Now}
	observer.Observe(t.Context())
	a := &Adopter{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Observer: observer}
	defer a.containers.events.Close()
	pass := func(what string, listed uint64, found ...string) {
		t.Helper()
		before := a.containers.listed
		got := a.foreignCgroups(h, func(name string) bool { return name == "own.scope" })
		n := 0
		for _, all := range got {
			n += len(all)
		}
		for _, cg := range found {
			if all := got[cgroup.SliceName{Tenant: "red", Grant: filepath.Base(filepath.Dir(cg))}]; len(all) != 1 || all[0] != cg {
				t.Errorf("%s: %v is found, want %s", what, got, cg)
			}
		}
		if n != len(found) || a.containers.listed-before != listed {
			t.Errorf("%s: %d cgroups and %d lists, want %d and %d", what, n, a.containers.listed-before, len(found), listed)
		}
	}
	pass("the first time", 3)
	pass("nothing happened", 0)
	create("/red/a/own.scope")
	pass("a scope of gpushare was created", 1)
	pass("nothing happened again", 0)
	create("/red/b/pod")
	pass("a container was created", 1, "/red/b/pod")
	pass("it is still there", 1, "/red/b/pod")
	if err := os.Remove(h.Dir("/red/b/pod")); err != nil {
		t.Fatal(err)
	}
	pass("it has ended", 1)
	pass("nothing happened after it", 0)
}
