package engines

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/lease"
)

// Of two requests that name one cgroup the second is refused, whether the first is answered or runs yet: the processes of a cgroup are in
// one lease. A cgroup above or below it has the same processes.
func TestACgroupIsNamedOnce(t *testing.T) {
	t.Parallel()
	en, l := newEngines(t, nil)
	populated(t, en, "/jobs/job_1", "1")
	refused := func(key, cg, says string) {
		t.Helper()
		end, _, err := en.named(key, cg)
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Kind != api.KindConflict || !strings.Contains(e.Message, says) {
			t.Errorf("%s names %s: %v", key, cg, err)
		}
		if end != nil {
			end()
		}
	}
	named := func(key, cg string) (end func()) {
		t.Helper()
		end, _, err := en.named(key, cg)
		if err != nil {
			t.Fatalf("%s names %s: %v", key, cg, err)
		}
		return end
	}
	for _, cg := range []string{"/jobs/job_1", "/jobs/job_1/step", "/jobs"} {
		refused("slurm:2", cg, "lease "+l.ID+" (slurm:1) has it")
	}
	named("slurm:1", "/jobs/job_1")() // its own
	named("slurm:2", "/jobs/job_10")()
	end := named("slurm:2", "/jobs/job_2")
	refused("slurm:3", "/jobs/job_2", "another request, with key slurm:2, names it")
	refused("slurm:3", "/jobs/job_2/step", "another request, with key slurm:2, names it")
	end()
	named("slurm:3", "/jobs/job_2")()
	if len(en.naming.named) != 0 {
		t.Errorf("named are still %v", en.naming.named)
	}
	// A lease that has ended has no cgroup.
	if _, err := en.Table.DropUnbound(t.Context(), l.ID, "its time is over"); err != nil {
		t.Fatal(err)
	}
	named("slurm:2", "/jobs/job_1")()
	// A lease of no engine is not asked: its processes are looked for.
	if _, err := en.Table.Submit(lease.Request{Tenant: "red", Admin: true, Origin: lease.OriginAttached}); err != nil {
		t.Fatal(err)
	}
	named("slurm:2", "/jobs/job_1")()
}

// A job that its engine starts again has the cgroup of its former run, whose lease may be ending yet.
func TestTheCgroupOfAnEndingLease(t *testing.T) {
	t.Parallel()
	en, l := newEngines(t, nil)
	populated(t, en, "/jobs/job_1", "1")
	if _, _, err := en.Table.Start(t.Context(), l.ID, lease.Process{PID: 1000, Start: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := en.named("slurm:2", "/jobs/job_1"); err == nil {
		t.Error("the cgroup of a lease that runs is named by another one")
	}
	if err := en.Table.Ending(l.ID, "its job was requeued"); err != nil {
		t.Fatal(err)
	}
	end, _, err := en.named("slurm:2", "/jobs/job_1")
	if err != nil {
		t.Fatal(err)
	}
	end()
}

// populated gives the engines a hierarchy with one cgroup. is what the kernel says of it: 1 if it has processes.
func populated(t *testing.T, en *Engines, cg, is string) {
	t.Helper()
	h := cgroup.Hierarchy{Mount: t.TempDir()}
	if err := os.MkdirAll(h.Dir(cg), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.Dir(cg), "cgroup.events"), []byte("populated "+is+"\nfrozen 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	en.Hierarchy = func() (cgroup.Hierarchy, error) { return h, nil }
}

// A lease that ends with its processes and has none is in the way of no later run of its job: its end was not reported, or nothing of it
// has begun. One that is kept waits for its processes.
func TestTheCgroupOfALeaseWithoutProcesses(t *testing.T) {
	t.Parallel()
	for name, there := range map[string]struct{ cg, is string }{
		"it has none":        {"/jobs/job_1", "0"},
		"there is no cgroup": {"/jobs/job_2", "1"},
		"it has processes":   {"/jobs/job_1", "1"},
	} {
		en, _ := newEngines(t, nil)
		populated(t, en, there.cg, there.is)
		end, _, err := en.named("slurm:2", "/jobs/job_1")
		if way := there.cg == "/jobs/job_1" && there.is == "1"; (err != nil) != way {
			t.Errorf("%s: %v", name, err)
		}
		if end != nil {
			end()
		}
	}
	// The cgroup above it may have processes of other jobs.
	en, _ := newEngines(t, nil)
	populated(t, en, "/jobs/job_1", "0")
	for _, cg := range []string{"/jobs", "/jobs/job_1/step"} {
		if _, _, err := en.named("slurm:2", cg); err == nil {
			t.Errorf("%s is named although a lease waits for processes in /jobs/job_1", cg)
		}
	}
	// Nothing is known of its processes.
	en, _ = newEngines(t, nil)
	en.Hierarchy = func() (cgroup.Hierarchy, error) { return cgroup.Hierarchy{}, errors.ErrUnsupported }
	if _, _, err := en.named("slurm:2", "/jobs/job_1"); err == nil {
		t.Error("without a hierarchy the cgroup of a lease is named by another one")
	}
	kept, err := en.Table.Submit(lease.Request{
		Tenant: "red", Admin: true, Origin: lease.OriginAttached, Engine: &lease.Engine{Key: "kubernetes:1", Kept: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	en.Table.NameCgroup(kept.ID(), "/pods/pod_1")
	populated(t, en, "/pods/pod_1", "0")
	if _, _, err := en.named("kubernetes:2", "/pods/pod_1"); err == nil {
		t.Error("the cgroup of a kept lease is named by another one")
	}
}
