package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/silentfs"
)

// The cgroup of a job comes at the same time as the request for its lease, again and again: the lease is bound in each order.
func TestCgroupComesWithTheRequest(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	for i := range 10 {
		name := fmt.Sprintf("job_%d", i)
		job := startOutside(t, n, 0, "sleep", "60")
		came := make(chan struct{})
		go func() {
			defer close(came)
			enter(t, belowCgroup(t, dir, name), job.pid())
		}()
		l := keyed(t, n, "--key", "slurm:lab:"+name, "--grant", "whole", "--cgroup", path+"/"+name).Lease
		<-came
		awaitStatus(t, n, "the lease is not bound", func(s *api.Status) bool {
			now := leaseByID(s, l.ID)
			return now != nil && now.State == api.LeaseRunning && now.Isolation.Cgroup == path+"/"+name
		})
		if err := job.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		awaitStatus(t, n, "the lease outlives its job", func(s *api.Status) bool { return leaseByID(s, l.ID) == nil })
	}
}

// The parent of a cgroup that is waited for is removed and comes again, as when slurmd is restarted: the lease is bound all the same.
func TestParentOfACgroupIsRemoved(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	scope := filepath.Join(dir, "scope")
	for range 2 {
		if err := os.Mkdir(scope, 0o755); err != nil {
			t.Fatal(err)
		}
		keyed(t, n, "--key", "slurm:lab:1:0", "--grant", "whole", "--cgroup", path+"/scope/job_1")
		if err := os.Remove(scope); err != nil {
			t.Fatal(err)
		}
	}
	job := startOutside(t, n, 0, "sleep", "60")
	enter(t, belowCgroup(t, dir, "scope", "job_1"), job.pid())
	awaitStatus(t, n, "the lease is not bound", func(s *api.Status) bool {
		return len(s.Leases) == 1 && s.Leases[0].State == api.LeaseRunning
	})
	if err := job.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// A job runs again before the end of its former run was reported, of which no process was seen: the second run has the cgroup and the place
// of the first.
func TestCgroupOfAFormerRun(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	request := func(run string) api.Lease {
		return *keyed(t, n, "--key", "slurm:lab:1:"+run, "--grant", "whole", "--cgroup", path+"/job_1").Lease
	}
	former, now := request("0"), request("1")
	if l := byKey(t, n, "slurm:lab:1:0"); l.ID != former.ID || l.State != api.LeaseEnded || !strings.Contains(l.Reason, "slurm:lab:1:1") {
		t.Errorf("the lease of the former run is %s: %s", l.State, l.Reason)
	}
	job := startOutside(t, n, 0, "sleep", "60")
	enter(t, belowCgroup(t, dir, "job_1"), job.pid())
	awaitStatus(t, n, "the lease is not bound", func(s *api.Status) bool {
		return len(s.Leases) == 1 && s.Leases[0].ID == now.ID && s.Leases[0].State == api.LeaseRunning
	})
	// The job has processes: it has the only lease.
	r := n.CLI(soon(t), "lease", "attach", "-t", "red", "--key", "slurm:lab:1:2", "--grant", "part", "--cgroup", path+"/job_1")
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, now.ID) {
		t.Errorf("a third run of it gets a lease: %d, %s%s", r.Code, r.Out, r.Err)
	}
	if err := job.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// A user who may create cgroups where an engine waits for one gets no lease of it: the cgroup is of root, of the engine, or of the user whom
// the lease is for.
func TestCgroupOfAnotherUser(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	foreign := func(name string) *outside {
		at := belowCgroup(t, dir, name)
		if err := os.Chown(at, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		job := startOutside(t, n, 0, "sleep", "60")
		enter(t, at, job.pid())
		return job
	}
	events := follow(t, n)
	later := keyed(t, n, "--key", "slurm:lab:1:0", "--grant", "whole", "--cgroup", path+"/later").Lease
	jobs := []*outside{foreign("later"), foreign("there")}
	events.await(t, "lease.ended", later.ID)
	if l := byKey(
		t,
		n,
		"slurm:lab:1:0",
	); !strings.Contains(l.Reason, "it belongs to ") ||
		l.State != api.LeaseEnded {
		t.Errorf("the lease is %s: %s", l.State, l.Reason)
	}
	r := n.CLI(soon(t), "lease", "attach", "-t", "red", "--key", "slurm:lab:2:0", "--grant", "whole", "--cgroup", path+"/there")
	if r.Code != api.ExitDenied || !strings.Contains(r.Err, "it belongs to ") {
		t.Errorf("attach exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if s := status(t, n); len(s.Leases) != 0 {
		t.Errorf("there are leases: %+v", s.Leases)
	}
	// The same key is free: the refusal has changed nothing.
	l := keyed(t, n, "--key", "slurm:lab:2:0", "--grant", "whole", "--cgroup", path+"/there", "--user", "65534").Lease
	if l.State != api.LeaseRunning {
		t.Errorf("the lease of the user of the cgroup is %s", l.State)
	}
	for _, j := range jobs {
		if !j.living() {
			t.Error("a process was ended")
		}
		if err := j.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// The path of a file that leads to a cgroup by another way than the mount, as through a symbolic link, is no path of a cgroup.
func TestPathThroughALink(t *testing.T) {
	t.Parallel()
	path, dir := newCgroup(t)
	n := start(t, quick)
	apply(t, n, engineSpec)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(dir), link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{link + path, link + path + "/later", link, dir + "/../" + filepath.Base(dir)} {
		r := n.CLI(soon(t), "lease", "attach", "-t", "red", "--key", "slurm:lab:1:0", "--grant", "whole", "--cgroup", name)
		if r.Code != api.ExitUsage || !strings.Contains(r.Err, "one below") {
			t.Errorf("%s: attach exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
	}
	if s := status(t, n); len(s.Leases) != 0 {
		t.Errorf("there are leases: %+v", s.Leases)
	}
}

// A path on a file system that never answers is none of a cgroup that is there: the daemon does not wait for it.
func TestPathOnASilentFileSystem(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a file system of another user needs root")
	}
	fs := silentfs.Start(t, 65534)
	n := start(t, quick)
	apply(t, n, engineSpec)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(fs.Path(silentfs.Lost), link); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{fs.Path(silentfs.Lost), link + "/job_1"} {
		key := fmt.Sprintf("slurm:lab:%d:0", i)
		r := n.CLI(soon(t), "lease", "attach", "-t", "red", "--key", key, "--grant", "whole", "--cgroup", name)
		if r.Code != 0 {
			t.Errorf("%s: attach exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
		if r = n.CLI(soon(t), "lease", "release", "--key", key); r.Code != 0 {
			t.Errorf("%s: release exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
	}
}
